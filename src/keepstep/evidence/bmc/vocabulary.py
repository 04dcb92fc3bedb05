"""The words of controllers, as data: (key of the catalogue, pattern), the first that is found counts. Texts come in lower case.

Patterns are of bounded length everywhere, so that no text makes them slow.
"""

TALK: tuple[tuple[str, str], ...] = (
    (
        "bmc.notice",
        r"time update|ntp server|diagnostic ?dump|dump .{0,60}(?:created|collected)|attempted to access",
    ),
    (
        "bmc.test",
        r"\btest ?(?:event|message|alert|trap)\b|\bthis is a test\b|\bsubmit ?test",
    ),
    (
        "bmc.firmware.update_failed",
        r"(?:firmware|image|update service|\bupdate\b|flash).{0,80}(?:no matching devices|fail|abort|cannot"
        r"|could not|unable|not support|invalid|verification fail|transfer.{0,60}fail)|verification (?:of image"
        r"|failed)|(?:transfer|apply|activate|verification) ?failed.{0,60}image",
    ),
    (
        "bmc.firmware.update_failed",
        r"errors of type .no matching devices",
    ),
    (
        "bmc.request.refused",
        r"requested .{0,80}(?:operation|action|request).{0,30}(?:cannot|could not|not).{0,12}(?:be )?completed"
        r"|unable to (?:complete|perform|start|export|import).{0,60}(?:operation|request|job|export|import"
        r"|certificate)|(?:export|import) operation|(?:certificate|license|licence|configuration job"
        r"|server profile).{0,60}(?:fail|cannot|unable|not|expire)|authentication fail|login (?:attempt|fail)"
        r"|log-?in attempt|invalid password|\bsnmp\b|\bldap\b|\bntp\b|\bssh\b|\bsmtp\b|access denied"
        r"|resource (?:missing|not found)",
    ),
    (
        "bmc.notice",
        r"security state|secure ?boot|login|logged (?:in|out)|log(?:ged)? ?(?:off|out)|unauthori[sz]ed"
        r"|user account|password|debug certificate|jumper|previous log entry was repeated",
    ),
    (
        "bmc.log.full",
        r"(?:log|sel) (?:area )?(?:is |almost |nearly )*full|sel_?full",
    ),
    (
        "bmc.notice",
        r"(?:log|sel|events?)(?: area)?(?: reset/| has been | was )?\s?cleared|log area reset|\biml cleared",
    ),
    (
        "bmc.nvswitch.online",
        r"smbpbi server is online",
    ),
    (
        "bmc.gpu.power_cap",
        r"sw ?power ?cap|swpowercap|clock optimi[sz]ed for power|\bgpu ?idle\b|throttle ?reasons?\.(?:none|na)\b",
    ),
    (
        "bmc.boot",
        r"system firmware progress|system boot|boot initiated|boot completed|os boot|timestamp clock sync"
        r"|\bpost (?:complete|start)|boot ?progress|system restart|initiated by (?:power up|hard reset|warm reset)"
        r"|oem system boot|pxe boot|c: boot|diagnostic boot|cd-?rom boot|rom boot",
    ),
    (
        "bmc.power.state",
        r"power state of resource .{1,120} has changed|(?:server|system|host|chassis) (?:is "
        r"|was )?(?:power(?:ed)?[ -]?(?:on|off|up|down)|reset)|acpi power state|s[0-5] ?/ ?g[0-3]|power (?:button"
        r"|off/power down|off/down)|graceful shutdown|os graceful|graceful stop|soft power-?off|(?:server|system"
        r"|host|chassis) .{0,12}power(?:ed)? ?(?:is |was )?(?:on|off|up|down|restored)\b",
    ),
)
"""Ordinary talk, refusals, tries: looked at first, so that no word in them passes for a fault."""

HARDWARE: tuple[tuple[str, str], ...] = (
    (
        "bmc.gpu.remap_failed",
        r"row ?remap\w* fail",
    ),
    (
        "bmc.gpu.remap_pending",
        r"row ?remap\w* pending",
    ),
    (
        "bmc.gpu.power_brake",
        r"power ?brake",
    ),
    (
        "bmc.gpu.thermal",
        r"(?:throttle ?reason|gpu|accel).{0,80}(?:thermal ?slowdown|overtemp|over ?temperature|overheat|thermtrip"
        r"|thermal trip)|hw ?thermal|overt\b",
    ),
    (
        "bmc.gpu.throttle",
        r"throttle ?reason",
    ),
    (
        "bmc.leak.sensor",
        r"leak.{0,80}(?:sensor|detector).{0,30}(?:fail|unavailable|unreadable|disconnect|not present)",
    ),
    (
        "bmc.leak.cabinet",
        r"(?:cabinet|rack|cdu|manifold|enclosure|cooling unit|cooling loop).{0,80}leak|cabinetleak"
        r"|leak.{0,80}(?:cabinet|rack|cdu|manifold)",
    ),
    (
        "bmc.leak",
        r"\bleak(?:age)?s? ?(?:detect|critical|sensor|warning)|detected a leak|leak detector|coolant leak|leakage",
    ),
    (
        "bmc.intrusion",
        r"intrusion|chassis (?:is |was )?open|cover (?:is |was )?(?:open|removed)|drive bay intrusion",
    ),
    (
        "bmc.cpu.thermal_trip",
        r"(?:thermal ?trip|thermtrip)",
    ),
    (
        "bmc.cpu.warning",
        r"(?<!un)correctable machine check|\bcorrected machine check",
    ),
    (
        "bmc.cpu.ierr",
        r"\bierr\b|\bmcerr\b|\bcaterr\b|cat ?err|internal error|machine check|catastrophic|mca_? ?error"
        r"|cpu ?error\b|cpu.{0,40}fatal|processor.{0,60}fatal|runtime fault.{0,60}processor"
        r"|processor.{0,60}runtime fault",
    ),
    (
        "bmc.cpu.throttled",
        r"(?:processor|cpu).{0,80}(?:throttl|prochot)|processor automatically throttled|prochot",
    ),
    (
        "bmc.memory.corrected_limit",
        r"(?<!un)correctable.{0,60}(?:limit|threshold|rate exceeded|logging disabled)|ecc.{0,20}limit reached"
        r"|corrected memory error threshold|adddc|post package repair",
    ),
    (
        "bmc.memory.uncorrectable",
        r"(?:memory|dimm|ddr|dram|ecc|hbm).{0,120}(?:uncorrect|multi-?bit|unrecoverable)|(?:uncorrect|multi-?bit"
        r"|unrecoverable).{0,80}(?:memory|dimm|ecc|dram)",
    ),
    (
        "bmc.memory.corrected",
        r"(?:memory|dimm|ecc).{0,80}(?:correctable|single-?bit)|correctable.{0,40}(?:ecc|memory)",
    ),
    (
        "bmc.memory.failed",
        r"(?:memory|dimm).{0,80}(?:device disabled|disabled|fail|config(?:uration)? error|parity"
        r"|not (?:functioning|responding)|critical over-?temp|training)",
    ),
    (
        "bmc.cpu.failed",
        r"frb[123]|bist fail|sm bios .{0,20}uncorrectable.{0,20}cpu|(?:processor|cpu).{0,60}(?:disabled|fail"
        r"|config(?:uration)? error|self[- ]test)",
    ),
    (
        "bmc.pcie.corrected",
        r"bus correctable|pci.{0,60}(?:\bcorrectable|\bcorrected)",
    ),
    (
        "bmc.pcie.nonfatal",
        r"bus degraded|pci.{0,60}non-?fatal|component.{0,40}non-?fatal",
    ),
    (
        "bmc.pcie.fatal",
        r"bus fatal|bus uncorrectable|pci serr|\bserr\b|pci perr|pci.{0,80}(?:\bfatal|uncorrect)|fatal (?:error"
        r"|bus|pci).{0,80}(?:\bbus\b|slot|pci|component)|slot.{0,60}fatal|(?:uncorrect"
        r"|(?<!non-)(?<!non)fatal).{0,40}\bpci",
    ),
    (
        "bmc.os.stop",
        r"run-?time critical stop|os stop|kernel panic|operating ?system ?crash|critical stop during|blue ?screen"
        r"|bsod|a runtime critical stop",
    ),
    (
        "bmc.watchdog",
        r"watchdog.{0,80}(?:hard reset|power (?:down|cycle)|expired|reset|nmi|timer interrupt|bite)"
        r"|automatic system recovery|\basr\b.{0,40}(?:reset|timer|detected)",
    ),
    (
        "bmc.nmi",
        r"\bnmi\b|software nmi|front panel nmi|diagnostic interrupt",
    ),
    (
        "bmc.psu.warning",
        r"(?:power supply|power supplies|psu).{0,80}predict",
    ),
    (
        "bmc.fan.warning",
        r"\bfans?\b.{0,80}predict",
    ),
    (
        "bmc.drive.predicted",
        r"(?:drive|disk|ssd|nvme|hdd|storage).{0,120}predict|predictive ?failure.{0,60}(?:drive|disk|ssd)"
        r"|smart.{0,30}(?:trip|fail|predict)|end of life|media wear",
    ),
    (
        "bmc.drive.warning",
        r"could not be authenticated|not (?:a )?genuine|unauthenticated drive|foreign config|(?:drive|disk|array"
        r"|volume).{0,60}rebuild(?! ?abort)",
    ),
    (
        "bmc.drive.failed",
        r"(?:drive|disk|ssd)s? (?:has |is |have )?(?:fail|fault)|should be replaced|(?:fault|failure) (?:detected "
        r"|condition exists )?on (?:the )?(?:drive|disk|ssd)",
    ),
    (
        "bmc.storage.degraded",
        r"in (?:critical|failed) array|(?:volume|array|virtual (?:disk|drive)|logical drive|raid"
        r"|storage ?pool).{0,80}(?:degrad|fail|offline|critical)|rebuild ?(?:/remap )?abort|(?:storage|array"
        r"|raid) controller.{0,80}(?:fail|critical|fatal|lock ?up)",
    ),
    (
        "bmc.drive.failed",
        r"(?:drive|disk|ssd|nvme|hdd).{0,160}(?:fault|fail|offline|should be replaced|critical|faulted|error)"
        r"|drive ?slot.{0,60}fault",
    ),
    (
        "bmc.psu.input_lost",
        r"(?:power supply|psu|\bps\d|power input|system power).{0,140}(?:ac[ _]?lost|ac/dc|input[ _](?:lost|power"
        r"|out[ -]of[ -]range|fault)|no input|power loss|unplugged|ac loss|lost ac|power cord|input voltage|vin)"
        r"|\bac lost\b|input ?lost|power ?supply ?power ?loss|power input.{0,60}lost"
        r"|power supply.{0,60}lost (?:its )?(?:ac )?input",
    ),
    (
        "bmc.psu.redundancy",
        r"(?:power|psu|ps[ _]).{0,80}(?:redundan)|(?:redundan).{0,60}power|redundancy ?(?:lost"
        r"|degraded).{0,40}power",
    ),
    (
        "bmc.psu.warning",
        r"(?:power supply|psu).{0,80}(?:predict|warn|mismatch|config(?:uration)? error|over ?temp|fan)",
    ),
    (
        "bmc.psu.failed",
        r"(?:power supply|power supplies|psu|\bps\d).{0,120}(?:fail|fault|critical|error|lost|off\b)",
    ),
    (
        "bmc.fan.warning",
        r"\bfans?\b.{0,80}redundan|cooling.{0,30}redundan|redundan.{0,60}\bfans?\b",
    ),
    (
        "bmc.fan.failed",
        r"\b\w{0,12}fan\w{0,12}\b.{0,120}(?:fail|lower (?:critical|non-?recoverable)|critical|fault|stall|below"
        r"|removed|non-?recoverable|transition to (?:off|critical|non-recoverable)|rpm .{0,40}(?:less|low))"
        r"|(?:pump).{0,60}(?:fail|fault|critical)",
    ),
    (
        "bmc.post.error",
        r"post error|unrecoverable system-firmware|firmware hang|system firmware (?:error|hang)|hang in post"
        r"|undetermined system hardware failure|no memory is|no usable|boot error|invalid boot|no bootable",
    ),
    (
        "bmc.battery",
        r"batter(?:y|ies).{0,80}(?:low|fail|depleted|critical|replace)|smart storage (?:battery|energy)",
    ),
    (
        "bmc.power.fault",
        r"power unit.{0,80}(?:fail|fault|soft-power|240va|interlock|ac lost)|power ?good.{0,40}(?:fail|lost|fault)"
        r"|main power fault|soft-?power control|power (?:control )?fault|power overload|unexpected power (?:loss"
        r"|off)|psy_?fault|vrm fault|voltage regulator (?:fail|fault)|regulator.{0,40}(?:fail|overheat)",
    ),
    (
        "bmc.nic.link",
        r"(?:network|nic|ethernet|link|port|adapter).{0,80}(?:links? (?:is |are )?down|link failure|disconnected"
        r"|connection ?dropped|flap|no link)|link ?down|lan leash",
    ),
    (
        "bmc.gpu.lost",
        r"(?:gpu|accelerator|accel|oam).{0,80}(?:missing|not (?:detected|present|found|responding)|lost|unplugged"
        r"|disappear|fell off|fallen off)",
    ),
    (
        "bmc.event.critical",
        r"slot ?/ ?connector.{0,60}fault|fault status asserted",
    ),
    (
        "bmc.event.warning",
        r"(?:cable|interconnect).{0,60}(?:config|fault|error|not (?:connected|seated))",
    ),
    (
        "bmc.sensor.unreadable",
        r"sensor ?read ?error|sensor (?:is )?(?:not readable|unavailable|failed to (?:read|respond))"
        r"|state unavailable|device absent|no reading|sensor failure",
    ),
    (
        "bmc.controller",
        r"bmc (?:was )?(?:reset|reboot|watchdog)|failover to redundant|management (?:controller|engine)"
        r"|\bilo\b.{0,40}(?:reset|self)|idrac.{0,30}reset|management subsystem health|controller unclean shutdown"
        r"|unclean shutdown",
    ),
)
"""What says that hardware, or the host, is not well. The special before the general."""
