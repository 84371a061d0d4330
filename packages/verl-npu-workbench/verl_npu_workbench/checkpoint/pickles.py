"""The pickles of a Megatron checkpoint, read without running anything: what each may name is listed here.

`.metadata` of torch.distributed.checkpoint is a pickle that torch loads as any other, and so are `common.pt` and the
objects beside the tensors, which verl's merger loads: whoever wrote such a file could have a program run by it.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from verl_npu.errors import CheckpointError
from verl_npu.language import gettext as _

_OF_METADATA = {
    "torch.distributed.checkpoint.metadata": {
        *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta"),
        *("TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
    },
    "torch.distributed._shard.sharded_tensor.metadata": {"TensorProperties", "MEM_FORMAT_ENCODING"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "collections": {"OrderedDict", "defaultdict"},
    "builtins": {"set", "frozenset", "dict", "list", "tuple"},
    "pathlib": {"Path", "PosixPath", "PurePath", "PurePosixPath"},
    "pathlib._local": {"Path", "PosixPath", "PurePath", "PurePosixPath"},
}
_OF_MEGATRON = "megatron.core.dist_checkpointing.strategies.torch"
"""Its classes for metadata and plans only hold what they are given, and torch's metadata is all that is asked of."""
_PLAIN = {
    *("bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "set", "slice", "str"),
    "tuple",
}
_NUMPY = {"ndarray", "dtype", "_reconstruct"}
_OF_OBJECTS = {
    "torch": {"Size", "device"},
    "torch._utils": {"_rebuild_tensor_v2", "_rebuild_parameter"},
    "collections": {"OrderedDict", "defaultdict"},
    "builtins": _PLAIN,
    "__builtin__": _PLAIN,
    "_codecs": {"encode"},
    "io": {"BytesIO"},
    "_io": {"BytesIO"},
    "argparse": {"Namespace"},
    "types": {"SimpleNamespace"},
    "numpy": _NUMPY,
    "numpy.core.multiarray": _NUMPY,
    "numpy._core.multiarray": _NUMPY,
    "megatron.core.enums": {"ModelType"},
    "megatron.core.transformer.enums": {"AttnBackend", "AttnMaskType", "AttnType", "LayerType", "ModelType"},
}
_TYPES = ("Storage", "Tensor")
_LARGEST = 1 << 30
"""Bytes of a pickle without its tensors."""
_ARCHIVE = b"PK"
_PICKLES = 5


class _Held:
    """An object of Megatron's that is not made: only its attributes are kept."""

    def __init__(self, *given: object) -> None:
        self.given = given


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == _OF_MEGATRON and name in ("MCoreMetadata", "MCoreSavePlan"):
            return _Held
        if name in _OF_METADATA.get(module, ()) or (module == "torch" and _is_dtype(name)):
            return super().find_class(module, name)
        raise _Named(f"{module}.{name}")


class _Named(pickle.UnpicklingError):
    """A pickle names what is on no list; the text is that name."""


def metadata(folder: Path) -> Any:
    """Return torch's metadata of a distributed checkpoint.

    Raises:
        FileNotFoundError: there is none.
        CheckpointError: it cannot be read, names what is not torch's, or another file than those beside it.
    """
    path = folder / ".metadata"
    try:
        with path.open("rb") as stream:
            found = _Reader(stream).load()
        entries, places = dict(found.state_dict_metadata), dict(found.storage_data or {})
        parts = [(place.relative_path, place.offset, place.length) for place in places.values()]
        for name, offset, length in parts:
            # A file's name alone: what lies elsewhere is none of this checkpoint's.
            if not name or Path(str(name)).name != name or min(int(offset), int(length)) < 0:
                raise _unreadable(
                    path,
                    _("a part in {name!r} at {offset}").format(name=str(name)[:200], offset=offset),
                    _("take the checkpoint of one save"),
                )
        if not all(isinstance(key, str) for key in entries):
            raise _unreadable(
                path, _("a key that is no text"), _("copy it again from where rank 0 saved the checkpoint")
            )
    except _Named as error:
        raise _unreadable(
            path, _("{error}, which would be run as it is read").format(error=error), _("take what Megatron saved")
        ) from None
    except (FileNotFoundError, CheckpointError):
        raise
    except Exception as error:
        # A damaged pickle can raise whatever the classes that it fills do.
        raise _unreadable(
            path,
            _("a file that cannot be read ({error})").format(error=repr(error)[:300]),
            _("copy it again from where rank 0 saved the checkpoint"),
        ) from error
    return found


def reader(folder: Path, known: object) -> Any:
    """Return torch's reader of the checkpoint, which is given its metadata and loads none itself."""
    from torch.distributed.checkpoint import FileSystemReader

    class Reader(FileSystemReader):  # type: ignore[misc]  # torch is not here when types are checked
        def read_metadata(self, *_: object, **__: object) -> object:
            return known

    return Reader(folder)


def check_objects(folder: Path, known: Any, model: tuple[str, ...]) -> None:
    """Look at all that upstream's merger unpickles besides: common.pt, and the objects among the model's tensors,
    whose keys start with `model`.

    Raises CheckpointError if one of them would run something as it is read.
    """
    common = folder / "common.pt"
    if common.is_file():
        with common.open("rb") as stream:
            _check(common, stream)
    from torch.distributed.checkpoint.metadata import BytesStorageMetadata

    for index, place in (known.storage_data or {}).items():
        entry = known.state_dict_metadata.get(index.fqn)
        if index.fqn.startswith(model) and isinstance(entry, BytesStorageMetadata):
            path = folder / place.relative_path
            with path.open("rb") as stream:
                stream.seek(place.offset)
                _check(path, io.BytesIO(stream.read(min(place.length, _LARGEST))))


def _check(path: Path, stream: IO[bytes]) -> None:
    try:
        for name in _names(stream):
            raise _unreadable(
                path,
                _("{name}, which would be run as it is read").format(name=name),
                _("take what verl saved by Megatron"),
            )
    except (zipfile.BadZipFile, EOFError, ValueError, KeyError) as error:
        raise _unreadable(
            path,
            _("a file that cannot be read ({error})").format(error=repr(error)[:300]),
            _("copy it again from where rank 0 saved the checkpoint"),
        ) from error


def _names(stream: IO[bytes]) -> Iterator[str]:
    """Yield what the pickles of a file of torch.save's name beyond what is listed."""
    if stream.read(len(_ARCHIVE)) == _ARCHIVE:
        stream.seek(0)
        with zipfile.ZipFile(stream) as archive:
            for entry in archive.infolist():
                if entry.filename.endswith("constants.pkl"):
                    yield _("a program of TorchScript")
                elif entry.filename.endswith(".pkl"):
                    if entry.file_size > _LARGEST:
                        raise ValueError(
                            _("{filename} of {file_size} bytes").format(
                                filename=entry.filename, file_size=entry.file_size
                            )
                        )
                    yield from _unlisted(io.BytesIO(archive.read(entry)))
        return
    # torch's older format: these pickles one after the other, and then the values of tensors.
    stream.seek(0)
    for _unused in range(_PICKLES):
        yield from _unlisted(stream)


def _unlisted(stream: IO[bytes]) -> Iterator[str]:
    for operation, argument, _offset in pickletools.genops(stream):
        if operation.name == "GLOBAL":
            module, _unused, name = str(argument).partition(" ")
            if not _is_listed(module, name, _OF_OBJECTS):
                yield f"{module}.{name}"
        elif operation.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"):
            # torch.save never writes them, and what they name is known only as it is read.
            yield _("a name that is put together ({operation})").format(operation=operation.name)


def _is_listed(module: str, name: str, listed: Mapping[str, set[str]]) -> bool:
    if name in listed.get(module, ()):
        return True
    return module == "torch" and (_is_dtype(name) or (name.endswith(_TYPES) and name.isidentifier()))


def _is_dtype(name: str) -> bool:
    import torch

    return isinstance(getattr(torch, name, None), torch.dtype)


def _unreadable(path: Path, found: str, fix: str) -> CheckpointError:
    return CheckpointError(
        subject=str(path), expected=_("what torch and Megatron save, and nothing else"), found=found, fix=fix
    )
