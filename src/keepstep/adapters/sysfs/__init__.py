"""What the kernel shows of ports, PCI devices, memory, sensors and power as files. One source for each."""
