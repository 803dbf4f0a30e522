/* The binary layout of the structs and the numbers of the codes, as a C compiler sees them. A
 * change here breaks every program that was compiled before: raise FLASHOPTIM_ABI_VERSION with it.
 * The figures are those of 64-bit machines. */
#include <flashoptim/flashoptim.h>

#define SIZE(type, size) _Static_assert(sizeof(type) == (size), #type " has changed its size")
#define AT(type, member, offset) \
  _Static_assert(offsetof(type, member) == (offset), #type "." #member " has moved")
#define CODE(name, number) _Static_assert((name) == (number), #name " has changed")

SIZE(flashoptim_status, 4);

SIZE(flashoptim_options, 104);
AT(flashoptim_options, struct_size, 0);
AT(flashoptim_options, optimizer, 8);
AT(flashoptim_options, codec, 12);
AT(flashoptim_options, master_weight_bits, 16);
AT(flashoptim_options, nonfinite, 20);
AT(flashoptim_options, lr, 24);
AT(flashoptim_options, initial_lr, 32);
AT(flashoptim_options, beta1, 40);
AT(flashoptim_options, beta2, 48);
AT(flashoptim_options, eps, 56);
AT(flashoptim_options, momentum, 64);
AT(flashoptim_options, dampening, 72);
AT(flashoptim_options, weight_decay, 80);
AT(flashoptim_options, seed, 88);
AT(flashoptim_options, quantize, 96);
AT(flashoptim_options, stochastic_rounding, 97);
AT(flashoptim_options, nesterov, 98);
AT(flashoptim_options, maximize, 99);
AT(flashoptim_options, amsgrad, 100);
AT(flashoptim_options, decouple_lr, 101);
AT(flashoptim_options, reserved, 102);

SIZE(flashoptim_tensor, 64);
AT(flashoptim_tensor, struct_size, 0);
AT(flashoptim_tensor, name, 8);
AT(flashoptim_tensor, data, 16);
AT(flashoptim_tensor, shape, 24);
AT(flashoptim_tensor, strides, 32);
AT(flashoptim_tensor, dimensions, 40);
AT(flashoptim_tensor, dtype, 48);
AT(flashoptim_tensor, device_type, 52);
AT(flashoptim_tensor, device_index, 56);
AT(flashoptim_tensor, reserved, 60);

SIZE(flashoptim_state_tensor, 88);
AT(flashoptim_state_tensor, struct_size, 0);
AT(flashoptim_state_tensor, parameter, 8);
AT(flashoptim_state_tensor, name, 16);
AT(flashoptim_state_tensor, data, 24);
AT(flashoptim_state_tensor, shape, 32);
AT(flashoptim_state_tensor, strides, 40);
AT(flashoptim_state_tensor, dimensions, 48);
AT(flashoptim_state_tensor, bytes, 56);
AT(flashoptim_state_tensor, alignment, 64);
AT(flashoptim_state_tensor, dtype, 72);
AT(flashoptim_state_tensor, device_type, 76);
AT(flashoptim_state_tensor, device_index, 80);
AT(flashoptim_state_tensor, reserved, 84);

SIZE(flashoptim_memory, 72);
AT(flashoptim_memory, weights, 8);
AT(flashoptim_memory, gradients, 16);
AT(flashoptim_memory, weight_correction, 24);
AT(flashoptim_memory, first_moment, 32);
AT(flashoptim_memory, second_moment, 40);
AT(flashoptim_memory, maximum, 48);
AT(flashoptim_memory, scales, 56);
AT(flashoptim_memory, other, 64);

SIZE(flashoptim_save_options, 24);
AT(flashoptim_save_options, struct_size, 0);
AT(flashoptim_save_options, shard_bytes, 8);
AT(flashoptim_save_options, zstd_level, 16);
AT(flashoptim_save_options, reserved, 20);

CODE(FLASHOPTIM_OK, 0);
CODE(FLASHOPTIM_INVALID_ARGUMENT, 1);
CODE(FLASHOPTIM_OUT_OF_MEMORY, 2);
CODE(FLASHOPTIM_DEVICE_ERROR, 3);
CODE(FLASHOPTIM_NONFINITE_GRADIENT, 4);
CODE(FLASHOPTIM_FILE_ERROR, 5);
CODE(FLASHOPTIM_INTERNAL_ERROR, 6);
CODE(FLASHOPTIM_SGD, 0);
CODE(FLASHOPTIM_SGDW, 1);
CODE(FLASHOPTIM_ADAM, 2);
CODE(FLASHOPTIM_ADAMW, 3);
CODE(FLASHOPTIM_LION, 4);
CODE(FLASHOPTIM_BFLOAT16, 0);
CODE(FLASHOPTIM_FLOAT16, 1);
CODE(FLASHOPTIM_FLOAT32, 2);
CODE(FLASHOPTIM_INT8, 3);
CODE(FLASHOPTIM_UINT8, 4);
CODE(FLASHOPTIM_INT16, 5);
CODE(FLASHOPTIM_INT64, 6);
CODE(FLASHOPTIM_CODEC_NONE, 0);
CODE(FLASHOPTIM_CODEC_ROOT, 1);
CODE(FLASHOPTIM_CODEC_SOFTSIGN, 2);
CODE(FLASHOPTIM_NONFINITE_PROPAGATE, 0);
CODE(FLASHOPTIM_NONFINITE_SKIP, 1);
CODE(FLASHOPTIM_NONFINITE_ERROR, 2);
CODE(FLASHOPTIM_CPU, 0);
CODE(FLASHOPTIM_CUDA, 1);

/* The library was compiled from the same header. */
int main(void) { return flashoptim_abi_version() == FLASHOPTIM_ABI_VERSION ? 0 : 1; }
