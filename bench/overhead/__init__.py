"""What Keepstep costs a healthy step."""
