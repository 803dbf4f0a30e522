"""Native part of flashoptim_cpp."""

from collections.abc import Mapping, Sequence
import enum


class DType(enum.IntEnum):
    BFLOAT16 = 0

    FLOAT16 = 1

    FLOAT32 = 2

class Codec(enum.Enum):
    NONE = 0

    ROOT = 1

    SOFTSIGN = 2

class Rule(enum.Enum):
    SGD = 0

    ADAM = 1

    LION = 2

class WeightDecay(enum.Enum):
    COUPLED = 0

    DECOUPLED = 1

    FULLY_DECOUPLED = 2

class Nonfinite(enum.Enum):
    PROPAGATE = 0

    SKIP = 1

    ERROR = 2

class DeviceType(enum.Enum):
    CPU = 0

    CUDA = 1

class Moment(enum.Enum):
    FIRST = 0

    SECOND = 1

FORMAT_VERSION: int = 1

GROUP_SIZE: int = 64

def geometry(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, int, int]:
    """
    Rows, row length and groups per row of a dense tensor (docs/format.md, section 2). ValueError if it has holes or overlaps.
    """

def effective_codec(asked: Codec, dimensions: int, row_length: int) -> Codec:
    """
    The codec that a tensor really gets: NONE where quantising gains nothing.
    """

def fresh_first_scale() -> float:
    """Scale of a fresh first moment."""

def fresh_second_scale(codec: Codec) -> float:
    """Scale of a fresh second moment."""

def version() -> str:
    """The library's version."""

def cpu_targets() -> list[str]:
    """Instruction sets that this machine can run, best first."""

def cpu_target() -> str:
    """
    The one in use. FLASHOPTIM_CPU_TARGET forces one; ValueError if it cannot run here.
    """

def set_cpu_target(name: str) -> None:
    """Forces one for this process."""

def cpu_threads() -> int:
    """Threads of a CPU step."""

def set_cpu_threads(count: int) -> None:
    """Sets the threads of a CPU step."""

def cuda_available() -> bool:
    """Whether CUDA tensors can be stepped."""

def cuda_status() -> str:
    """Why, or why not, in a sentence."""

def load_cuda_kernels(rule: Rule, device_index: int) -> None:
    """Loads the kernels of a rule on a GPU, which else the first step does."""

class TensorBinding:
    """Addresses of one parameter and its state (plan.h)."""

    def __init__(self) -> None: ...

    @property
    def name(self) -> str: ...

    @name.setter
    def name(self, arg: str, /) -> None: ...

    @property
    def device_type(self) -> DeviceType: ...

    @device_type.setter
    def device_type(self, arg: DeviceType, /) -> None: ...

    @property
    def device_index(self) -> int: ...

    @device_index.setter
    def device_index(self, arg: int, /) -> None: ...

    @property
    def weight_dtype(self) -> DType: ...

    @weight_dtype.setter
    def weight_dtype(self, arg: DType, /) -> None: ...

    @property
    def correction_bits(self) -> int: ...

    @correction_bits.setter
    def correction_bits(self, arg: int, /) -> None: ...

    @property
    def codec(self) -> Codec: ...

    @codec.setter
    def codec(self, arg: Codec, /) -> None: ...

    @property
    def rows(self) -> int: ...

    @rows.setter
    def rows(self, arg: int, /) -> None: ...

    @property
    def row_length(self) -> int: ...

    @row_length.setter
    def row_length(self, arg: int, /) -> None: ...

    @property
    def first_group(self) -> int: ...

    @first_group.setter
    def first_group(self, arg: int, /) -> None: ...

    @property
    def group_stride(self) -> int: ...

    @group_stride.setter
    def group_stride(self, arg: int, /) -> None: ...

    @property
    def first_in_group(self) -> int: ...

    @first_in_group.setter
    def first_in_group(self, arg: int, /) -> None: ...

    @property
    def stream_key(self) -> int: ...

    @stream_key.setter
    def stream_key(self, arg: int, /) -> None: ...

    @property
    def step_on_device(self) -> bool: ...

    @step_on_device.setter
    def step_on_device(self, arg: bool, /) -> None: ...

    @property
    def parameter_group(self) -> int: ...

    @parameter_group.setter
    def parameter_group(self, arg: int, /) -> None: ...

    @property
    def weight(self) -> int: ...

    @weight.setter
    def weight(self, arg: int, /) -> None: ...

    @property
    def correction(self) -> int: ...

    @correction.setter
    def correction(self, arg: int, /) -> None: ...

    @property
    def first_moment(self) -> int: ...

    @first_moment.setter
    def first_moment(self, arg: int, /) -> None: ...

    @property
    def first_moment_scale(self) -> int: ...

    @first_moment_scale.setter
    def first_moment_scale(self, arg: int, /) -> None: ...

    @property
    def second_moment(self) -> int: ...

    @second_moment.setter
    def second_moment(self, arg: int, /) -> None: ...

    @property
    def second_moment_scale(self) -> int: ...

    @second_moment_scale.setter
    def second_moment_scale(self, arg: int, /) -> None: ...

    @property
    def maximum(self) -> int: ...

    @maximum.setter
    def maximum(self, arg: int, /) -> None: ...

    @property
    def maximum_scale(self) -> int: ...

    @maximum_scale.setter
    def maximum_scale(self, arg: int, /) -> None: ...

    @property
    def step(self) -> int: ...

    @step.setter
    def step(self, arg: int, /) -> None: ...

class Hyperparameters:
    """Hyper-parameters of one parameter group (plan.h)."""

    def __init__(self) -> None: ...

    @property
    def lr(self) -> float: ...

    @lr.setter
    def lr(self, arg: float, /) -> None: ...

    @property
    def initial_lr(self) -> float: ...

    @initial_lr.setter
    def initial_lr(self, arg: float, /) -> None: ...

    @property
    def beta1(self) -> float: ...

    @beta1.setter
    def beta1(self, arg: float, /) -> None: ...

    @property
    def beta2(self) -> float: ...

    @beta2.setter
    def beta2(self, arg: float, /) -> None: ...

    @property
    def eps(self) -> float: ...

    @eps.setter
    def eps(self, arg: float, /) -> None: ...

    @property
    def momentum(self) -> float: ...

    @momentum.setter
    def momentum(self, arg: float, /) -> None: ...

    @property
    def dampening(self) -> float: ...

    @dampening.setter
    def dampening(self, arg: float, /) -> None: ...

    @property
    def weight_decay(self) -> float: ...

    @weight_decay.setter
    def weight_decay(self, arg: float, /) -> None: ...

    @property
    def weight_decay_kind(self) -> WeightDecay: ...

    @weight_decay_kind.setter
    def weight_decay_kind(self, arg: WeightDecay, /) -> None: ...

    @property
    def nesterov(self) -> bool: ...

    @nesterov.setter
    def nesterov(self, arg: bool, /) -> None: ...

    @property
    def maximize(self) -> bool: ...

    @maximize.setter
    def maximize(self, arg: bool, /) -> None: ...

    @property
    def stochastic_rounding(self) -> bool: ...

    @stochastic_rounding.setter
    def stochastic_rounding(self, arg: bool, /) -> None: ...

    @property
    def nonfinite(self) -> Nonfinite: ...

    @nonfinite.setter
    def nonfinite(self, arg: Nonfinite, /) -> None: ...

    @property
    def seed(self) -> int: ...

    @seed.setter
    def seed(self, arg: int, /) -> None: ...

def check_hyperparameters(rule: Rule, hyperparameters: Hyperparameters) -> None:
    """ValueError naming the hyper-parameter that is out of range."""

class Plan:
    """The tensors of one optimizer, ready to be stepped."""

    def __init__(self, rule: Rule, tensors: Sequence[TensorBinding], parameter_groups: int) -> None: ...

    def __len__(self) -> int: ...

    def set_hyperparameters(self, parameter_group: int, hyperparameters: Hyperparameters) -> None: ...

    def set_stream(self, device_index: int, stream: int) -> None:
        """
        Sets the CUDA stream, as an int, on which the tensors of a GPU are stepped.
        """

    def set_device_learning_rate(self, parameter_group: int, lr: int) -> None:
        """
        Makes a group read its learning rate from a float on the GPU; address 0: no longer.
        """

    def set_gradient_scale(self, scale: float) -> None:
        """Divides the gradients of tensors whose step count is on the host."""

    def set_gradient_scaling(self, device_index: int, scale: int, found_inf: int) -> None:
        """
        What GradScaler gives for a GPU, as addresses of floats there; 0: neither.
        """

    def set_gradient(self, tensor: int, address: int, dtype: DType) -> None:
        """Sets a tensor's gradient for the steps that follow; address 0: none."""

    def step(self) -> int:
        """
        Steps every tensor that has a gradient. Returns the number of tensors that nonfinite='skip' left alone. RuntimeError before anything is written if nonfinite='error' finds a gradient that is not finite.
        """

class TensorSnapshot:
    """What tensors were when a plan was made."""

class TensorReader:
    """Reads torch tensors through DLPack's C functions (tensor_reader.h)."""

    def __init__(self, tensor_type: object) -> None:
        """TypeError if the type does not offer them (torch before 2.10)."""

    def ask_addresses(self, function: int, samples: list) -> bool:
        """
        Asks aoti_torch_get_data_ptr, at this address, for addresses of state, which is faster than DLPack; returns whether that works for the samples (tensor_address.h).
        """

    def snapshot(self, groups: list, tracked: list, state: dict) -> TensorSnapshot:
        """
        What the parameters of the groups, one list each, those of them with state, and all tensors in that state are now.
        """

    def holds(self, snapshot: TensorSnapshot, groups: list, state: dict) -> bool:
        """
        Whether a snapshot still holds for the parameters of the groups, one list each, and their state, and parameters without state have no gradient.
        """

    def read_gradients(self, plan: Plan, snapshot: TensorSnapshot, tracked: list, stepped: list) -> list:
        """
        Sets the plan's gradients from parameters; appends those with a gradient to `stepped` and returns the indices of gradients that it could not read in place.
        """

def join_master_weights(weight: int, dtype: DType, correction: int, correction_bits: int, count: int, master: int) -> None:
    """
    fp32 master weights of a weight and its correction; addresses in host memory.
    """

def split_master_weights(master: int, count: int, weight: int, dtype: DType, correction: int, correction_bits: int) -> None:
    """Splits fp32 master weights into weight and correction, to nearest."""

def decode_moments(moment: Moment, codec: Codec, rows: int, row_length: int, codes: int, scales: int, values: int) -> None:
    """fp32 moments of codes and scales; addresses in host memory."""

def encode_moments(moment: Moment, codec: Codec, rows: int, row_length: int, values: int, codes: int, scales: int) -> None:
    """Codes and scales of fp32 moments, to nearest."""

class FileError(ValueError):
    pass

def write_checkpoint(path: str, tensors: Sequence[tuple[str, str, Sequence[int], int]], metadata: Mapping[str, str], shard_bytes: int = 0, zstd_level: int = 3) -> None:
    """
    Writes tensors (name, dtype, shape, address in host memory) to a file; see flashoptim/checkpoint.h.
    """

def read_checkpoint(path: str) -> tuple:
    """
    Metadata, and by name the dtype, shape and bytes of each tensor; everything is checked.
    """
