"""What the text of an error says it is. Owns the table of texts; knows no log format and no verdict.

``ANYWHERE`` are texts that mean their error wherever they stand. ``RAISED`` are looked for only in what a program raised:
the same words are harmless in a line of information. The first that matches wins, so the order is from particular to general.
"""

import re

Table = tuple[tuple[str, "re.Pattern[str]"], ...]


def _table(*rows: tuple[str, str]) -> Table:
    return tuple((key, re.compile(pattern)) for key, pattern in rows)


ANYWHERE: Table = _table(
    ("job.error.cuda_ecc",
     r"(?i)uncorrectable ECC error encountered|ECC_?UNCORRECTABLE"),
    ("job.error.cuda_nvlink",
     r"(?i)uncorrectable NVLink error|NVLINK_?UNCORRECTABLE|access of peer GPU memory over nvlink or a hardware error"),
    ("job.error.cuda_lost",
     r"(?i)\bGPU is lost\b|GPU has fallen off the bus|ERROR_GPU_IS_LOST|"
     r"Unable to determine the device handle for (?:GPU|gpu)"),
    ("job.error.cuda_fabric", r"(?i)CUDA.{0,60}(?:error 802|system not yet initialized)|cudaErrorSystemNotReady"),
    ("job.error.cuda_busy", r"(?i)CUDA-capable device(?:s|\(s\))? (?:is/are|are|is) busy or unavailable|"
     r"cudaErrorDevicesUnavailable"),
    ("job.error.cuda_no_device",
     r"(?i)no CUDA-capable device is detected|cudaErrorNoDevice|No CUDA GPUs are available|No HIP GPUs are available|"
     r"no ROCm-capable device is detected|hipErrorNoDevice"),
    ("job.error.cuda_driver", r"(?i)CUDA driver version is insufficient|NVIDIA driver on your system is too old|"
     r"driver/library version mismatch|forward compatibility was attempted on non supported HW"),
    ("job.error.cuda_hardware",
     r"(?i)CUDA(?:_ERROR| error|\w* failure).{0,60}(?:hardware stack error|HARDWARE_STACK)|cudaErrorHardwareStackError"),
    ("job.error.cuda_oom",
     r"(?i)(?:CUDA|HIP|NPU|XPU) out of memory|CUDA(?: runtime)? (?:error|failure)[^\n]{0,20}out of memory|"
     r"torch\.(?:cuda\.)?OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED|CUDA_ERROR_OUT_OF_MEMORY|"
     r"RESOURCE_EXHAUSTED: Out of memory|"
     r"cudaErrorMemoryAllocation"),
    ("job.error.cuda_assert", r"(?i)device-side assert|cudaErrorAssert|Assertion `[^\n]{1,200}` failed\.?$"),
    ("job.error.cuda_illegal",
     r"(?i)illegal memory access|cudaErrorIllegalAddress|CUDA_ERROR_ILLEGAL_ADDRESS|misaligned address|"
     r"invalid program counter|invalid address space|Memory access fault by GPU node|hipErrorIllegalAddress"),
    ("job.error.cuda_launch",
     r"(?i)unspecified launch failure|cudaErrorLaunchFailure|CUDA_ERROR_LAUNCH_FAILED|an illegal instruction was encountered|"
     r"cudaErrorIllegalInstruction|the launch timed out and was terminated|hipErrorLaunchFailure"),
    ("job.error.npu",
     r"(?i)error code is 507\d{3}|\bEZ9999\b|aicore (?:exception|timeout|execution)|vector core (?:exception|execution)"),
    ("job.error.cuda_library",
     r"CU(?:BLAS|DNN|SPARSE|SOLVER|FFT)_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR|NOT_INITIALIZED)|"
     r"(?i:CUDA error: unknown error|cudaErrorUnknown|CUDA unknown error)"),
    ("job.error.cuda", r"\bCUDA (?:runtime )?error:? \S|\bHIP error:? \S|Cuda failure \S"),
    ("job.error.shared_memory",
     r"(?i)bus error encountered in worker|insufficient shared memory|out of shared memory|"
     r"(?:failed|unable|error)(?: to| while)? (?:extend|open|creat\w*|attach\w*)[^\n]{0,40}/dev/shm/|"
     r"unable to (?:open|write to|resize) (?:shared memory|file)[^\n]{0,80}(?:shm|torch_|shared)|"
     r"/dev/shm[^\n]{0,80}No space left|NCCL[^\n]{0,60}(?:shm|shared memory)[^\n]{0,80}"
     r"No space left on device|No space left on device[^\n]{0,60}/dev/shm"),
    ("job.error.dataloader_killed",
     r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal|exited unexpectedly)"),
    ("job.error.nan",
     r"(?i)found NaN in|loss (?:is|became) (?:nan|inf)\b|loss scale already at minimum|"
     r"nan (?:loss|gradient)s? (?:detected|found)|(?:nan|inf) (?:in|detected in) (?:local )?(?:grad|forward|loss)|"
     r"NaN or Inf found in|rerun_state_machine.{0,80}(?:nan|spiky)"),
)  # fmt: skip

RAISED: Table = _table(
    ("job.error.cuda", r"\bCUDA_ERROR_[A-Z_]+|\bhipError[A-Z]\w+|\bcudaError[A-Z]\w+"),
    ("job.error.checkpoint",
     r"(?i)PytorchStreamReader|failed finding central directory|invalid header or archive is corrupted|"
     r"(?:checkpoint|safetensors|state_?dict)[^\n]{0,120}(?:corrupt|truncat|incomplete|not found|missing|mismatch)|"
     r"(?:corrupt|truncat|incomplete)[^\n]{0,60}(?:checkpoint|safetensors)|SafetensorError|InvalidHeaderDeserialization|"
     r"MetadataIncompleteBuffer|CheckpointException|Error\(s\) in loading state_dict|UnpicklingError|"
     r"Ran out of input|\.metadata'|unexpected pos \d+ vs \d+"),
    ("job.error.quota", r"Errno 122|Disk quota exceeded|EDQUOT"),
    ("job.error.no_space", r"Errno 28|No space left on device|ENOSPC"),
    ("job.error.shared_storage",
     r"Errno 116|Stale file handle|Stale NFS|Errno 121|Remote I/O error|Errno 107|Transport endpoint is not connected|"
     r"Errno 108|Cannot send after transport endpoint shutdown|Errno 112|Host is down"),
    ("job.error.read_only", r"Errno 30|Read-only file system"),
    ("job.error.io", r"Errno 5\]|Input/output error"),
    ("job.error.limits", r"Errno 24|Too many open files|Errno 11\]|Resource temporarily unavailable|can't start new thread"),
    ("job.error.host_memory",
     r"^MemoryError|Errno 12\]|Cannot allocate memory|DefaultCPUAllocator[^\n]{0,40}(?:can't|not enough)|std::bad_alloc|"
     r"OutOfMemoryError: Task was killed"),
    ("job.error.dns",
     r"(?i)name resolution|Name or service not known|getaddrinfo failed|nodename nor servname|NameResolutionError|"
     r"Could not resolve host|EAI_AGAIN|Failed to resolve '"),
    ("job.error.dependency",
     r"(?i)EndpointConnectionError|SlowDown|ServiceUnavailable|InternalError\) when calling|RequestTimeout|"
     r"ReadTimeoutError|ConnectTimeout(?:Error)?\b|HTTPError: 5\d\d|5\d\d Server Error|HfHubHTTPError|botocore|"
     r"ServerTimeoutError|MaxRetryError|ProxyError|SSLError|google\.api_core\.exceptions|azure\.core\.exceptions|"
     r"RemoteDisconnected|(?:wandb|mlflow|psycopg2?|redis|pymongo|etcd3?|kafka)\.[\w.]{0,60}(?:Error|Exception)|"
     r"StatusCode\.UNAVAILABLE|429 Client Error|NoCredentialsError|ExpiredToken|Couldn't reach|"
     r"LocalEntryNotFoundError|OfflineModeIsEnabled"),
    ("job.peer_lost",
     r"(?i)Connection reset by peer|Broken ?pipe|Connection closed by (?:remote )?peer|ConnectionAbortedError|"
     r"coordination (?:service|agent)[^\n]{0,80}(?:error|unavailable|heartbeat)|ConnectionResetError|EOFError$|"
     r"communicator (?:was |is )?aborted|ncclCommAbort|Work was aborted|"
     r"NCCL operations have failed or timed out|"
     r"failed to recv, got 0 bytes|Socket Timeout|sendBytes failed|recvValue failed"),
    ("job.rendezvous",
     r"(?i)Rendezvous\w{0,30}Error|client socket has timed out|DistStoreError|Timed out after \d+ seconds waiting for clients|"
     r"Timed out initializing process group|wait timeout after \d+ ?ms|Address already in use|EADDRINUSE|"
     r"The server socket has failed to (?:listen|bind)|"
     r"Socket timeout[^\n]{0,40}store"),
    ("job.error.refused", r"(?i)Connection refused|ConnectionRefusedError|No route to host|Network is unreachable|Errno 111"),
    ("job.error.data",
     r"(?i)UnicodeDecodeError|UnidentifiedImageError|image file is truncated|cannot identify image|"
     r"zlib\.error|BadZipFile|BadGzipFile|tarfile\.\w*Error|ReadError: (?:unexpected end|not a gzip|invalid header)|"
     r"JSONDecodeError|ArrowInvalid|ParquetError|Parquet magic bytes|(?:corrupt|broken|truncated)[^\n]{0,40}"
     r"(?:sample|image|record|data|shard|video|audio|file)|CRC32? (?:check|error|mismatch)|lz4[^\n]{0,30}Error|"
     r"zstd[^\n]{0,30}Error|DatasetGenerationError|EOFError: Compressed file ended|moov atom not found|DecordError"),
    ("job.error.nan", r"(?i)\bnan\b[^\n]{0,60}(?:loss|grad)|(?:loss|grad)[^\n]{0,40}\bnan\b|FloatingPointError"),
    ("job.interrupted", r"^KeyboardInterrupt"),
)  # fmt: skip

ECHO = re.compile(
    r"ChildFailedError|CalledProcessError|ProcessExitedException|ProcessRaisedException|WorkerGroupFailureException|"
    r"^SystemExit|RayTaskError|ActorDiedError|^torch\.multiprocessing\.spawn"
)
"""What a launcher raises because a child has failed: no error of its own."""


def anywhere(text: str) -> str:
    """Key of the error that the text means wherever it stands; empty where it means none."""
    return next((key for key, pattern in ANYWHERE if pattern.search(text)), "")


def raised(text: str) -> str:
    """Key of an error that a program raised; ``job.error.application`` where the table has nothing."""
    if ECHO.search(text):
        return ""
    return anywhere(text) or next((key for key, pattern in RAISED if pattern.search(text)), "job.error.application")
