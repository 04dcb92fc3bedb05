"""torch's distributed checkpoint (``torch.distributed.checkpoint``, "DCP") over a repository: a writer, which is its own stager
for ``async_save``, and a reader. Owns what a DCP state looks like in our groups:

    tensors    fully qualified name -> Shard, also for tensors that one rank saves whole
    objects    ``{"objects": name -> plain value, "paths": name -> place in the nested state}``

A save is an attempt of its own, and exists once its commit does: one that dies leaves what was there before. Nothing is
pickled into the repository. In torch's own error path everything that goes wrong arrives as CheckpointException, which
``except Exception`` does not catch; :func:`save` and :func:`load` raise this library's errors instead.
"""

import dataclasses
import io
import os
import re
import secrets
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from keepstep.checkpoint.errors import CheckpointError, SaveFailed, StateInvalid
from keepstep.checkpoint.format.records import Extent, Manifest, Sharded
from keepstep.checkpoint.plugs.torch_staging import Staging
from keepstep.checkpoint.repository.coverage import check_coverage
from keepstep.checkpoint.repository.pack_reader import PackReader
from keepstep.checkpoint.repository.pack_writer import Group
from keepstep.checkpoint.repository.repository import Commit, Repository, staging
from keepstep.checkpoint.repository.save import Save
from keepstep.checkpoint.reshard.saved import SavedGroups, elements
from keepstep.checkpoint.state.blob import digest_chunks, pack, unpack_verified
from keepstep.checkpoint.state.leaves import is_torch_dtype
from keepstep.checkpoint.state.shards import Shard, Shards
from keepstep.checkpoint.state.tree import flatten

TENSORS, OBJECTS = "tensors", "objects"
_STEP = re.compile(r"(?:.*[^0-9])?(\d{1,18})")
_KEY = re.compile(r"\d{20}")


class _Ticket(NamedTuple):
    """What the coordinator tells a rank about the save."""

    step: int
    attempt: str
    world_size: int
    rank: int


class KeepstepWriter(StorageWriter):
    """Saves of one job. ``dcp.save(state, storage_writer=writer, checkpoint_id=step)``; also ``dcp.async_save``.

    ``checkpoint_id``: the step, or anything that ends in it (``"run/step-100"``). ``verify``: read every byte back before a
    save is reported as done. ``committed``: the last commit, on the coordinator.
    """

    _synchronize_after_execute = False
    """Of torch's AsyncStager: a staged copy is whole when ``stage`` returns."""

    def __init__(self, repository: Repository, *, generation: int = 0, verify: bool = True) -> None:
        self._repository, self._generation, self._verify = repository, generation, verify
        self._step = -1
        self._save: Save | None = None
        self._staging = Staging()
        self.committed: Commit | None = None

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return _STEP.fullmatch(os.fspath(checkpoint_id)) is not None

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self._step = _step_of(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._step < 0:
            raise ValueError("which step is saved? Give it: checkpoint_id=100")
        if not kwargs.get("use_collectives", True):
            raise ValueError("ranks agree on one save through collectives: leave use_collectives as it is")
        self._save = None

    def storage_meta(self) -> StorageMeta | None:
        return StorageMeta(checkpoint_id=str(self._step))

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        if not all(plan.usable for plan in plans):
            raise ValueError("a plan of an earlier save names that save: leave enable_plan_caching off")
        attempt = f"d{secrets.token_hex(8)}"
        self._save = self._named(_Ticket(self._step, attempt, len(plans), 0))
        return [
            dataclasses.replace(plan, storage_data=_Ticket(self._step, attempt, len(plans), rank))
            for rank, plan in enumerate(plans)
        ]

    def _named(self, ticket: _Ticket) -> Save:
        return Save(
            job=self._repository.job, generation=self._generation, step=ticket.step, attempt=ticket.attempt,
            world_size=ticket.world_size,
        )  # fmt: skip

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Make this rank's items durable, and its receipt. Raises TypeError for an object that would have to be pickled."""
        ticket: _Ticket = plan.storage_data
        if ticket.step != self._step:
            raise ValueError(f"ranks save different steps: {ticket.step} and {self._step}")
        trees = {TENSORS: _tensors(plan, planner), OBJECTS: _objects(plan, planner)}
        groups: dict[str, Group] = {}
        for name, tree in trees.items():
            blob = pack(flatten(tree))
            groups[name] = Group(blob, digest_chunks(blob))
        self._staging.written()
        receipt = self._repository.write_part(self._named(ticket), ticket.rank, groups)
        # All that results need here; sizes are of the whole part, which is what was written.
        size = sum(receipt.sizes_bytes.values())
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(index=item.index, size_in_bytes=size, storage_data=None) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Commit. Raises SaveFailed, with nothing committed, unless every rank's part is there and right."""
        assert self._save is not None, "torch plans before it finishes"
        written = {result.index.fqn for of_rank in results for result in of_rank}
        if absent := sorted(metadata.state_dict_metadata.keys() - written):
            raise SaveFailed(f"step {self._step} was not saved: no rank wrote {', '.join(absent[:5])}")
        commit = self._repository.try_commit(self._save)
        if commit is None:
            raise SaveFailed(f"step {self._step} was not saved: receipts of some ranks are missing")
        if self._verify:
            try:
                self._repository.verify(commit.key)
            except StateInvalid as error:
                self._repository.mark(commit.key, "corrupt", str(error))
                raise SaveFailed(f"step {self._step} was written wrongly: {error}") from error
            commit = self._repository.mark(commit.key, "verified")
            self._repository.mark_latest(commit)
        self.committed = commit

    # ---- torch's AsyncStager

    @property
    def should_synchronize_after_execute(self) -> bool:
        return self._synchronize_after_execute

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """A copy on the CPU, in memory that is used again. The caller may go on training when it returns."""
        staged: dict[str, Any] = self._staging.copy(state_dict)
        return staged

    def synchronize_staging(self) -> None:
        """Nothing is left to wait for."""

    def close(self) -> None:
        self._staging.close()


def _step_of(checkpoint_id: str | os.PathLike[str]) -> int:
    match = _STEP.fullmatch(str(checkpoint_id))
    if match is None:
        raise ValueError(f"checkpoint_id {checkpoint_id!r} does not end in a step number, as 100 or 'step-100' do")
    return int(match[1])


def _tensors(plan: SavePlan, planner: SavePlanner) -> dict[str, Shard | Shards]:
    parts: dict[str, list[Shard]] = {}
    for item in plan.items:
        if item.type == WriteItemType.BYTE_IO:
            continue
        data = item.tensor_data
        assert data is not None, "torch describes every tensor that it has written"
        tensor: torch.Tensor = planner.resolve_data(item)  # type: ignore[assignment]
        parts.setdefault(item.index.fqn, []).append(Shard(tensor.detach(), tuple(data.size), tuple(data.chunk.offsets)))
    return {name: of[0] if len(of) == 1 else Shards(of) for name, of in parts.items()}


def _objects(plan: SavePlan, planner: SavePlanner) -> dict[str, Any]:
    """Values as they are: what the planner would make of them (``resolve_data``) is a pickle."""
    items = [item for item in plan.items if item.type == WriteItemType.BYTE_IO]
    return {"objects": {item.index.fqn: _value(item, planner) for item in items}, "paths": plan.planner_data}


def _value(item: WriteItem, planner: SavePlanner) -> Any:
    look_up = getattr(planner, "lookup_object", None)
    if look_up is None:
        raise TypeError(
            f"{item.index.fqn}: {type(planner).__name__} gives only pickles; derive it from DefaultSavePlanner"
        )
    return look_up(item.index)


class KeepstepReader(StorageReader):
    """One checkpoint of a job. ``dcp.load(state, storage_reader=reader, checkpoint_id=step)``.

    ``checkpoint_id``: a step, or the 20 digits of a commit; without one, the newest that is not known to be bad. All bytes
    are checked before any of the state is changed, at the cost of one more copy of this rank's part in memory.
    """

    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._asked = ""
        self._commit: Commit | None = None
        self._manifest: Manifest | None = None
        self._objects: dict[str, Any] = {}
        self._rank = 0

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        text = os.fspath(checkpoint_id)
        return bool(_KEY.fullmatch(text) or _STEP.fullmatch(text))

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._asked = "" if checkpoint_id is None else str(checkpoint_id)

    def read_metadata(self, *_args: Any, **_options: Any) -> Metadata:
        """Raises StateInvalid, a key error, or OSError."""
        self._commit = self._choose()
        manifest = self._manifest = self._repository.manifest(self._commit.key)
        check_coverage(manifest.ranks)
        reader = self._repository.reader(manifest)
        found: dict[str, Any] = {}
        paths: dict[str, Any] | None = {}
        for digest in dict.fromkeys(part.groups.get(OBJECTS, "") for part in manifest.ranks):
            tree = _object_tree(reader, manifest, digest)
            found = tree["objects"] | found
            paths = None if paths is None or tree["paths"] is None else tree["paths"] | paths
        self._objects = found
        return Metadata(
            state_dict_metadata={name: BytesStorageMetadata() for name in found} | _described(manifest),
            planner_data=paths,
            storage_meta=StorageMeta(checkpoint_id=self._commit.key),
        )

    def _choose(self) -> Commit:
        commits = self._repository.commits()
        if _KEY.fullmatch(self._asked):
            return self._repository.commit(self._asked)
        good = [commit for commit in commits if commit.state not in ("suspect", "corrupt")]
        if self._asked:
            step = _step_of(self._asked)
            good = [commit for commit in good if commit.step == step]
        if not good:
            steps = ", ".join(f"{commit.step} ({commit.state})" for commit in commits) or "none"
            asked = f"step {self._asked}" if self._asked else "checkpoint"
            raise StateInvalid(
                f"job {self._repository.job} has no {asked} to load in {self._repository.store.name}; there is: {steps}"
            )
        return good[0]

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        return

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        assert self._commit is not None, "torch reads the metadata first"
        return dataclasses.replace(plan, storage_data=self._commit.key)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        keys = {plan.storage_data for plan in plans}
        if len(keys) > 1:
            raise StateInvalid(f"ranks would load different checkpoints, {sorted(keys)}: name one with checkpoint_id")
        return [dataclasses.replace(plan, storage_data=rank) for rank, plan in enumerate(plans)]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        assert self._manifest is not None, "torch reads the metadata first"
        tensors = [item for item in plan.items if item.type != LoadItemType.BYTE_IO]
        staged = _read(self._repository.reader(self._manifest), self._manifest, tensors, plan.storage_data)
        for item, data in zip(tensors, staged, strict=True):
            target = planner.resolve_tensor(item).detach()
            target.copy_(data)
            planner.commit_tensor(item, target)
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                # Planners take what torch.save makes. These bytes come from plain values, and from no file.
                buffer = io.BytesIO()
                torch.save(self._objects[item.storage_index.fqn], buffer)
                buffer.seek(0)
                planner.load_bytes(item, buffer)
        done: Future[None] = Future()
        done.set_result(None)
        return done


def _object_tree(reader: PackReader, manifest: Manifest, digest: str) -> Any:
    if digest not in manifest.sizes_bytes:
        raise StateInvalid(
            f"the checkpoint of step {manifest.step} was not saved through torch's distributed checkpoint"
        )
    blob = staging(manifest.sizes_bytes[digest])
    reader.read_group(digest, memoryview(blob.data))
    tree = unpack_verified(blob)
    if not isinstance(tree, dict) or tree.keys() != {"objects", "paths"} or not isinstance(tree["objects"], dict):
        raise StateInvalid(
            f"the checkpoint of step {manifest.step} was not saved through torch's distributed checkpoint"
        )
    return tree


def _described(manifest: Manifest) -> dict[str, Any]:
    """What torch wants to know about every tensor."""
    found: dict[str, TensorStorageMetadata] = {}
    for part in manifest.ranks:
        for sharded in part.sharded.get(TENSORS, ()):
            if not is_torch_dtype(sharded.dtype):
                raise StateInvalid(f"{sharded.path} is no torch tensor but {sharded.dtype}")
            whole = found.get(sharded.path)
            if whole is None:
                properties = TensorProperties(dtype=getattr(torch, sharded.dtype))
                whole = found[sharded.path] = TensorStorageMetadata(properties, torch.Size(sharded.shape), [])
            whole.chunks.append(
                ChunkStorageMetadata(torch.Size(sharded.extent.offset), torch.Size(sharded.extent.shape))
            )
    return found


def _read(reader: PackReader, manifest: Manifest, items: list[ReadItem], rank: int) -> list[torch.Tensor]:
    """A new CPU tensor for each item, in their order."""
    holders: dict[tuple[str, tuple[int, ...]], list[tuple[str, Sharded]]] = {}
    for part in manifest.ranks:
        for sharded in part.sharded.get(TENSORS, ()):
            if 0 not in sharded.extent.shape:
                holders.setdefault((sharded.path, sharded.extent.offset), []).append((part.groups[TENSORS], sharded))
    saved = SavedGroups(reader)
    places = []
    for number, item in enumerate(items):
        offset = tuple(item.storage_index.offset or (0,) * len(item.lengths))
        having = holders[item.storage_index.fqn, offset]
        digest, sharded = having[rank % len(having)]
        leaf = saved.group(digest).shards.get(sharded.path, {}).get(sharded.extent, -1)
        if leaf < 0:
            raise StateInvalid(f"group {digest} has not the shard of {sharded.path} that its receipt says it has")
        places.append((digest, saved.group(digest).offsets[leaf], number, leaf, getattr(torch, sharded.dtype)))
    out: list[torch.Tensor] = [torch.empty(0)] * len(items)
    for digest, _, number, leaf, dtype in sorted(places, key=lambda place: place[:3]):
        item = items[number]
        out[number] = torch.empty(item.lengths, dtype=dtype)
        if out[number].numel():
            target = elements(out[number].reshape(-1).view(torch.uint8).numpy(), tuple(item.lengths), dtype.itemsize)
            saved.read_box(saved.group(digest), leaf, Extent(tuple(item.storage_offsets), tuple(item.lengths)), target)
    return out


def save(state: dict[str, Any], writer: KeepstepWriter, step: int, **options: Any) -> None:
    """``dcp.save``, raising this library's errors. ``options``: ``process_group``, ``planner``, ``no_dist``."""
    try:
        dcp_save(state, storage_writer=writer, checkpoint_id=str(step), **options)
    except CheckpointException as error:
        raise _own_error(error, SaveFailed, f"step {step} was not saved") from error


def load(state: dict[str, Any], reader: KeepstepReader, checkpoint_id: str | int | None = None, **options: Any) -> None:
    """``dcp.load``, raising this library's errors; ``state`` is as it was if reading failed on this rank."""
    reader.reset(None if checkpoint_id is None else str(checkpoint_id))
    try:
        dcp_load(state, storage_reader=reader, **options)
    except CheckpointException as error:
        raise _own_error(error, StateInvalid, "nothing was loaded") from error


def _own_error(error: CheckpointException, kind: type[CheckpointError], what: str) -> CheckpointError:
    failures: Mapping[int, Any] = error.failures
    rank, (cause, _) = min(failures.items())
    more = f" and {len(failures) - 1} other ranks" if len(failures) > 1 else ""
    made = type(cause) if isinstance(cause, CheckpointError) else kind
    return made(f"{what}: rank {rank}{more}: {cause}")
