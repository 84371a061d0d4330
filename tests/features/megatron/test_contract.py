"""The contracts of MindSpeed's revisions: recorded, read back, and extracted from source without an import."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from verl_npu.errors import DeclarationError, SourceError
from verl_npu.features import locks_folder
from verl_npu.features.megatron.contract import Argument, Contract, read_contract, write_contract
from verl_npu.features.megatron.source import contracts, examine, extract, nearest

from .conftest import MEGATRON, REVISIONS

FEATURE = """
    from mindspeed.features_manager.feature import MindSpeedFeature

    class Fused(MindSpeedFeature):
        def __init__(self, feature_name="fused-thing", optimization_level=2):
            super().__init__(feature_name, optimization_level)

        def register_args(self, parser):
            group = parser.add_argument_group(title=self.feature_name)
            group.add_argument("--fused-thing", action="store_true")
            group.add_argument("--fused-size", type=int, default=4)
            group.add_argument("--fused-mode", type=str, default="a", choices=["a", "b"])

        def validate_args(self, args):
            self.incompatible_check(args, "other-thing")
            self.dependency_check(args, "wanted_thing")
            if args.looked_at:
                pass

        def register_patches(self, manager, args):
            if getattr(args, "decides", False):
                from mindspeed.code import run
                manager.register_patch("megatron.core.x", run)

    class More(Fused):
        def __init__(self):
            super().__init__("always-on", 0)

        def register_args(self, parser):
            self.add_parser_argument_choices_value(parser, "--fused-mode", "c")

    class Unlisted(Fused):
        def register_args(self, parser):
            parser.add_argument("--never")
"""
LIST = """
    def add(features):
        features.extend([Fused(), More()])

    def create_features_list():
        features = []
        add(features)
        return features
"""
CODE = """
    from mindspeed.args_utils import get_full_args as get_args

    def run(something):
        args = get_args()
        return args.num_layers, args.read_at_run_time, something.unknown_to_all
"""
MORE_CODE = """
    class Rope:
        def scale(self):
            return getattr(self.config, "read_from_a_configuration", None)
"""
ARGUMENTS = """
    def transformer_config_post_init_wrapper(original):
        def wrapper(self):
            original(self)
            MindSpeedFeaturesManager.validate_features_args(args=self)
        return wrapper
"""
CONFIG = """
    class TransformerConfig:
        num_layers: int = 0
        method: Optional[str] = None
"""


@pytest.fixture
def sources(tmp_path: Path) -> tuple[Path, Path]:
    """Write a small MindSpeed and a small Megatron of our own; return their folders."""
    files = {
        "mindspeed/features_manager/__init__.py": LIST,
        "mindspeed/features_manager/fused.py": FEATURE,
        "mindspeed/code.py": CODE,
        "mindspeed/core/rope.py": MORE_CODE,
        "mindspeed/core/megatron_basic/arguments_basic.py": ARGUMENTS,
        "megatron/core/model_parallel_config.py": "class ModelParallelConfig:\n        size: int = 1\n",
        "megatron/core/transformer/transformer_config.py": CONFIG,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path / "mindspeed", tmp_path / "megatron"


@pytest.fixture
def extracted(sources: tuple[Path, Path]) -> Contract:
    return extract(*sources, "small", "0")


def test_arguments_have_their_type_default_choices_and_feature(extracted: Contract) -> None:
    assert extracted.arguments == {
        "fused_thing": Argument("bool", False, (), "fused_thing"),
        "fused_size": Argument("int", 4, (), "fused_thing"),
        "fused_mode": Argument("str", "a", ("a", "b", "c"), "fused_thing"),
    }


def test_what_a_feature_says_of_others_is_read(extracted: Contract) -> None:
    fused = extracted.features["fused_thing"]
    assert (fused.level, fused.conflicts, fused.needs) == (2, ("other_thing",), ("wanted_thing",))
    assert fused.switches == ("decides", "fused_thing")


def test_a_class_that_mindspeed_does_not_list_has_no_say(extracted: Contract) -> None:
    assert not extracted.knows("never")
    assert set(extracted.features) == {"fused_thing", "always_on"}


def test_what_a_feature_looks_at_is_known(extracted: Contract) -> None:
    assert extracted.knows("looked_at")
    assert not extracted.knows("unknown_to_all")


@pytest.mark.parametrize("key", ["read_at_run_time", "read_from_a_configuration"])
def test_what_code_reads_at_run_time_is_known(extracted: Contract, key: str) -> None:
    assert extracted.knows(key)


def test_what_an_unrecorded_mindspeed_reads_at_run_time_is_known(sources: tuple[Path, Path]) -> None:
    assert examine(*sources).contract.knows("read_at_run_time")


def test_one_process_holds_what_mindspeed_does_not_tell_apart(extracted: Contract) -> None:
    assert extracted.alike("recompute_method", "uniform", None)
    assert not extracted.alike("recompute_method", "block", None)
    assert not extracted.alike("moe_grouped_gemm", True, None)


def test_whether_a_models_configuration_is_validated_is_read(sources: tuple[Path, Path], extracted: Contract) -> None:
    assert extracted.validates
    wrapper = sources[0] / "core" / "megatron_basic" / "arguments_basic.py"
    wrapper.write_text(wrapper.read_text().replace("validate_features_args", "nothing"))
    assert not extract(*sources, "small", "0").validates


def test_a_models_configuration_is_validated_from_2_2_0_on() -> None:
    assert {contract.revision for contract in contracts() if not contract.validates} == {"1cdd0abd75", "f6688"}


def test_megatrons_fields_are_known_with_their_annotation(extracted: Contract) -> None:
    assert extracted.fields == {"num_layers": "int", "method": "Optional[str]", "size": "int"}


def test_what_the_code_reads_of_the_process_is_found_through_an_alias(extracted: Contract) -> None:
    assert extracted.process == ("num_layers",)


def test_a_contract_is_read_back_as_it_was_written(extracted: Contract, tmp_path: Path) -> None:
    assert read_contract(write_contract(extracted, tmp_path)) == extracted


def test_a_damaged_contract_is_one_clear_error(extracted: Contract, tmp_path: Path) -> None:
    path = write_contract(extracted, tmp_path)
    path.write_text(path.read_text().replace('"features"', '"fetures"'))
    with pytest.raises(
        DeclarationError, match=r"arguments\.json: expected a valid contract file of a MindSpeed revision"
    ):
        read_contract(path)


def test_a_mindspeed_without_a_list_of_features_is_one_clear_error(sources: tuple[Path, Path]) -> None:
    (sources[0] / "features_manager" / "__init__.py").write_text("")
    with pytest.raises(SourceError, match="create_features_list"):
        extract(*sources, "small", "0")


def test_mindspeed_without_megatron_says_what_to_install(sources: tuple[Path, Path]) -> None:
    with pytest.raises(SourceError, match="pip install megatron-core"):
        examine(sources[0], None)


def test_an_unknown_mindspeed_is_reported_with_what_differs(sources: tuple[Path, Path]) -> None:
    installed = examine(*sources)
    assert not installed.exact
    assert installed.contract.revision.startswith("installed (nearest ")
    assert any("argument fused_mode: only at installed" in line for line in installed.differences)


def test_a_recorded_contract_is_nearest_to_itself(contract: Contract) -> None:
    # f6688 accepts the same overrides as 1cdd0abd75, whose name is found first.
    assert nearest(contract).revision == {"f6688": "1cdd0abd75"}.get(contract.revision, contract.revision)


def test_all_eight_revisions_are_recorded() -> None:
    assert set(MEGATRON) == {
        "1cdd0abd75",
        "f6688",
        "f2b0977e",
        "2.2.0_core_r0.12.1",
        "2.3.0_core_r0.12.1",
        "core_r0.15.3",
        "core_r0.16.0",
        "core_r0.18.0",
    }
    assert set(MEGATRON) - set(REVISIONS) == {"core_r0.18.0"}


def test_a_mindspeed_that_imports_megatron_adaptor_is_told_apart(sources: tuple[Path, Path]) -> None:
    assert not extract(*sources, "small", "0").adaptor
    (sources[0] / "__init__.py").write_text("import megatron_adaptor  # noqa: F401\n")
    assert extract(*sources, "small", "0").adaptor


@pytest.mark.parametrize("revision", MEGATRON)
def test_the_recorded_contract_is_what_the_source_gives(revision: str) -> None:
    """Needs VERL_NPU_UPSTREAMS, a folder with `mindspeed-<revision>/` (checkouts of github.com/Ascend/MindSpeed) and
    `megatron-<version>/` (`pip install --no-deps --target` of megatron-core in that version)."""
    folder = Path(os.environ.get("VERL_NPU_UPSTREAMS", "none"))
    mindspeed, megatron = folder / f"mindspeed-{revision}", folder / f"megatron-{MEGATRON[revision]}"
    if not (mindspeed.is_dir() and megatron.is_dir()):
        pytest.skip(f"set VERL_NPU_UPSTREAMS to a folder with {mindspeed.name}/ and {megatron.name}/")
    made = extract(mindspeed / "mindspeed", megatron / "megatron", revision, MEGATRON[revision])
    assert made == read_contract(locks_folder() / "mindspeed" / revision / "arguments.json")
