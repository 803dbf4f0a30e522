/* The C interface: optimizers with 8-bit states on plain pointers. C11, and C++. docs/cpp.md is the
 * guide; link with libflashoptim (flashoptim::capi).
 *
 * Every function that can fail returns a flashoptim_status; flashoptim_last_error then says which
 * tensor, which value and what helps. A call that fails changes nothing. Null pointers, wrong codes
 * and wrong sizes are refused.
 *
 * Structs begin with their size, which the initialisers below set: a library knows by it which
 * members its caller has. A program that was compiled with a newer header is refused.
 *
 * Threads: a builder or an optimizer is used by one thread at a time; different ones at once.
 * Pointers that the library hands out belong to it and hold until their builder or optimizer is
 * changed or destroyed. */
#ifndef FLASHOPTIM_FLASHOPTIM_H_
#define FLASHOPTIM_FLASHOPTIM_H_

/* NOLINTBEGIN(modernize-*, readability-identifier-naming): this is C. */
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define FLASHOPTIM_API __attribute__((visibility("default")))
#else
#define FLASHOPTIM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Changes when a program has to be compiled again; it is the SOVERSION of the shared library. */
#define FLASHOPTIM_ABI_VERSION 0

/* The numbers below never change their meaning; new ones are added at the end. */
typedef int32_t flashoptim_status;
enum {
  FLASHOPTIM_OK = 0,
  FLASHOPTIM_INVALID_ARGUMENT = 1,   /* the caller passed what cannot be used */
  FLASHOPTIM_OUT_OF_MEMORY = 2,      /* of the host */
  FLASHOPTIM_DEVICE_ERROR = 3,       /* no usable GPU, no CUDA in this build, a failed CUDA call */
  FLASHOPTIM_NONFINITE_GRADIENT = 4, /* under FLASHOPTIM_NONFINITE_ERROR */
  FLASHOPTIM_FILE_ERROR = 5,    /* a file cannot be read or written, or is not what it should be */
  FLASHOPTIM_INTERNAL_ERROR = 6 /* a defect of the library */
};

/* Optimizers. */
enum {
  FLASHOPTIM_SGD = 0,
  FLASHOPTIM_SGDW = 1,
  FLASHOPTIM_ADAM = 2,
  FLASHOPTIM_ADAMW = 3,
  FLASHOPTIM_LION = 4
};

/* Element types. Weights and gradients have one of the first three. */
enum {
  FLASHOPTIM_BFLOAT16 = 0,
  FLASHOPTIM_FLOAT16 = 1,
  FLASHOPTIM_FLOAT32 = 2,
  FLASHOPTIM_INT8 = 3,
  FLASHOPTIM_UINT8 = 4,
  FLASHOPTIM_INT16 = 5,
  FLASHOPTIM_INT64 = 6
};

/* How moments are kept (docs/format.md, section 5). */
enum { FLASHOPTIM_CODEC_NONE = 0, FLASHOPTIM_CODEC_ROOT = 1, FLASHOPTIM_CODEC_SOFTSIGN = 2 };

/* What a gradient that holds NaN or an infinity does. */
enum {
  FLASHOPTIM_NONFINITE_PROPAGATE = 0, /* its elements become non-finite, as in torch */
  FLASHOPTIM_NONFINITE_SKIP = 1,      /* its tensor is left alone and counted */
  FLASHOPTIM_NONFINITE_ERROR = 2      /* the step fails before anything is written */
};

enum { FLASHOPTIM_CPU = 0, FLASHOPTIM_CUDA = 1 };

/* Options of a parameter group. Fill it with flashoptim_options_init, then change what differs. An
 * optimizer reads those members that it has. Booleans are 0 or 1. */
typedef struct flashoptim_options {
  size_t struct_size;
  int32_t optimizer;          /* FLASHOPTIM_ADAMW, ... */
  int32_t codec;              /* FLASHOPTIM_CODEC_ROOT */
  int32_t master_weight_bits; /* 16, 24 or 32: 24 */
  int32_t nonfinite;          /* FLASHOPTIM_NONFINITE_PROPAGATE */
  double lr;                  /* 1e-3 */
  double initial_lr;          /* for decouple_lr and schedules; negative (default): lr at first */
  double beta1;               /* 0.9 */
  double beta2;               /* 0.999; Lion 0.99 */
  double eps;                 /* 1e-8 */
  double momentum;            /* 0 */
  double dampening;           /* 0 */
  double weight_decay;        /* 0; AdamW 1e-2 */
  uint64_t seed;              /* 0 */
  uint8_t quantize;           /* 1 */
  uint8_t stochastic_rounding;
  uint8_t nesterov;
  uint8_t maximize;
  uint8_t amsgrad;
  uint8_t decouple_lr;
  uint8_t reserved[2]; /* 0 */
} flashoptim_options;

/* A weight. Its memory stays the caller's and must outlive the optimizer; the description itself is
 * copied. Start from FLASHOPTIM_TENSOR_INIT: an fp32 tensor on the CPU. */
typedef struct flashoptim_tensor {
  size_t struct_size;
  const char* name;       /* unique; errors and files use it */
  void* data;             /* aligned to the element size */
  const int64_t* shape;   /* `dimensions` sizes; may be null without dimensions */
  const int64_t* strides; /* in elements; null: row-major. Must be dense. */
  size_t dimensions;      /* at most 64 */
  int32_t dtype;
  int32_t device_type;
  int32_t device_index;
  int32_t reserved; /* 0 */
} flashoptim_tensor;

#define FLASHOPTIM_TENSOR_INIT \
  { sizeof(flashoptim_tensor), NULL, NULL, NULL, NULL, 0, FLASHOPTIM_FLOAT32, FLASHOPTIM_CPU, 0, 0 }

/* One tensor of a parameter's state (docs/format.md, section 9). The library fills it. */
typedef struct flashoptim_state_tensor {
  size_t struct_size;
  size_t parameter; /* index among all parameters */
  const char* name; /* "step", "exp_avg", ... */
  void* data;       /* null in a layout */
  const int64_t* shape;
  const int64_t* strides; /* in elements */
  size_t dimensions;
  size_t bytes;
  size_t alignment; /* the least; 64 is fast on every backend */
  int32_t dtype;
  int32_t device_type;
  int32_t device_index;
  int32_t reserved;
} flashoptim_state_tensor;

#define FLASHOPTIM_STATE_TENSOR_INIT \
  { sizeof(flashoptim_state_tensor), 0, NULL, NULL, NULL, NULL, 0, 0, 0, 0, 0, 0, 0 }

/* Bytes by what they are for. */
typedef struct flashoptim_memory {
  size_t struct_size;
  uint64_t weights;
  uint64_t gradients;
  uint64_t weight_correction;
  uint64_t first_moment;
  uint64_t second_moment;
  uint64_t maximum;
  uint64_t scales;
  uint64_t other;
} flashoptim_memory;

#define FLASHOPTIM_MEMORY_INIT \
  { sizeof(flashoptim_memory), 0, 0, 0, 0, 0, 0, 0, 0 }

/* How a file is written. */
typedef struct flashoptim_save_options {
  size_t struct_size;
  uint64_t shard_bytes; /* above 0: the largest shard of a path in .safetensors.index.json */
  int32_t zstd_level;   /* 1 to 22, of a path in .zst: 3 */
  int32_t reserved;     /* 0 */
} flashoptim_save_options;

#define FLASHOPTIM_SAVE_OPTIONS_INIT \
  { sizeof(flashoptim_save_options), 0, 3, 0 }

/* Groups and tensors that an optimizer will be made of. */
typedef struct flashoptim_builder flashoptim_builder;
typedef struct flashoptim_optimizer flashoptim_optimizer;

/* "major.minor.patch"; the version of docs/format.md; FLASHOPTIM_ABI_VERSION of the library. */
FLASHOPTIM_API const char* flashoptim_version(void);
FLASHOPTIM_API int32_t flashoptim_format_version(void);
FLASHOPTIM_API int32_t flashoptim_abi_version(void);

/* What the last call that failed on this thread said; "" if none has. Holds until the next failure
 * on this thread. Never null. */
FLASHOPTIM_API const char* flashoptim_last_error(void);
/* "FLASHOPTIM_INVALID_ARGUMENT" for 1, and so on; "unknown" for other numbers. */
FLASHOPTIM_API const char* flashoptim_status_name(flashoptim_status status);

/* Whether CUDA tensors can be stepped: 0 or 1. */
FLASHOPTIM_API int32_t flashoptim_cuda_available(void);
/* Threads of a CPU step, of the whole process. Fails below 1. */
FLASHOPTIM_API int32_t flashoptim_cpu_threads(void);
FLASHOPTIM_API flashoptim_status flashoptim_set_cpu_threads(int32_t count);

/* The defaults of an optimizer. `struct_size` is sizeof(flashoptim_options). */
FLASHOPTIM_API flashoptim_status flashoptim_options_init(flashoptim_options* options,
                                                         size_t struct_size, int32_t optimizer);

/* Builders. All groups of one must be of the same optimizer. Destroying null does nothing. */
FLASHOPTIM_API flashoptim_status flashoptim_builder_create(flashoptim_builder** builder);
FLASHOPTIM_API void flashoptim_builder_destroy(flashoptim_builder* builder);
/* `group`, if not null, gets the index of the new group. */
FLASHOPTIM_API flashoptim_status flashoptim_builder_add_group(flashoptim_builder* builder,
                                                              const flashoptim_options* options,
                                                              size_t* group);
FLASHOPTIM_API flashoptim_status flashoptim_builder_add_tensor(flashoptim_builder* builder,
                                                               size_t group,
                                                               const flashoptim_tensor* tensor);
/* The state tensors that the optimizer will have, group by group. */
FLASHOPTIM_API flashoptim_status flashoptim_builder_state_count(flashoptim_builder* builder,
                                                                size_t* count);
FLASHOPTIM_API flashoptim_status flashoptim_builder_state(flashoptim_builder* builder, size_t index,
                                                          flashoptim_state_tensor* tensor);
/* Memory of the caller for one of them, which must outlive the optimizer; null: the library's.
 * Adding a group or a tensor forgets all of it. */
FLASHOPTIM_API flashoptim_status flashoptim_builder_set_state_memory(flashoptim_builder* builder,
                                                                     size_t index, void* data);
/* 1: the caller's memory holds the state of an earlier run, which is kept. 0: it is made fresh. */
FLASHOPTIM_API flashoptim_status flashoptim_builder_keep_state(flashoptim_builder* builder,
                                                               int32_t keep);

/* Makes an optimizer; the builder can be destroyed afterwards. Weights are not touched. */
FLASHOPTIM_API flashoptim_status flashoptim_optimizer_create(flashoptim_builder* builder,
                                                             flashoptim_optimizer** optimizer);
FLASHOPTIM_API void flashoptim_optimizer_destroy(flashoptim_optimizer* optimizer);

/* Gradients, on the weight's device, with elements that lie like the weight's. They stay set. */
FLASHOPTIM_API flashoptim_status flashoptim_set_gradient(flashoptim_optimizer* optimizer,
                                                         size_t parameter, const void* data,
                                                         int32_t dtype);
FLASHOPTIM_API flashoptim_status flashoptim_clear_gradient(flashoptim_optimizer* optimizer,
                                                           size_t parameter);
/* All gradients are divided by `scale` in the steps that follow. */
FLASHOPTIM_API flashoptim_status flashoptim_set_gradient_scale(flashoptim_optimizer* optimizer,
                                                               float scale);
/* The cudaStream_t of one GPU. */
FLASHOPTIM_API flashoptim_status flashoptim_set_stream(flashoptim_optimizer* optimizer,
                                                       int32_t device_index, void* stream);
/* Steps every parameter that has a gradient. `skipped`, if not null, gets the number of parameters
 * that FLASHOPTIM_NONFINITE_SKIP left alone. */
FLASHOPTIM_API flashoptim_status flashoptim_step(flashoptim_optimizer* optimizer,
                                                 uint64_t* skipped);

/* Options as they are in force, and their change, which must not change the form of the state. */
FLASHOPTIM_API flashoptim_status flashoptim_get_options(const flashoptim_optimizer* optimizer,
                                                        size_t group, flashoptim_options* options);
FLASHOPTIM_API flashoptim_status flashoptim_set_options(flashoptim_optimizer* optimizer,
                                                        size_t group,
                                                        const flashoptim_options* options);
FLASHOPTIM_API flashoptim_status flashoptim_set_lr(flashoptim_optimizer* optimizer, size_t group,
                                                   double lr);

/* Numbers of groups and of parameters; a parameter as it was described, with the strides that it
 * has and its group, where `group` is not null; the index of a name; how often one was stepped. */
FLASHOPTIM_API flashoptim_status flashoptim_group_count(const flashoptim_optimizer* optimizer,
                                                        size_t* count);
FLASHOPTIM_API flashoptim_status flashoptim_parameter_count(const flashoptim_optimizer* optimizer,
                                                            size_t* count);
FLASHOPTIM_API flashoptim_status flashoptim_parameter(const flashoptim_optimizer* optimizer,
                                                      size_t parameter, flashoptim_tensor* tensor,
                                                      size_t* group);
FLASHOPTIM_API flashoptim_status flashoptim_find_parameter(const flashoptim_optimizer* optimizer,
                                                           const char* name, size_t* parameter);
FLASHOPTIM_API flashoptim_status flashoptim_step_count(const flashoptim_optimizer* optimizer,
                                                       size_t parameter, uint64_t* count);

/* State tensors, by their index in the order of the layout, or by parameter and name. */
FLASHOPTIM_API flashoptim_status flashoptim_state_count(const flashoptim_optimizer* optimizer,
                                                        size_t* count);
FLASHOPTIM_API flashoptim_status flashoptim_state(const flashoptim_optimizer* optimizer,
                                                  size_t index, flashoptim_state_tensor* tensor);
FLASHOPTIM_API flashoptim_status flashoptim_find_state(const flashoptim_optimizer* optimizer,
                                                       size_t parameter, const char* name,
                                                       size_t* index);
/* Copies one to and from `bytes` bytes of host memory, exactly its size. */
FLASHOPTIM_API flashoptim_status flashoptim_read_state(const flashoptim_optimizer* optimizer,
                                                       size_t index, void* target, size_t bytes);
FLASHOPTIM_API flashoptim_status flashoptim_write_state(flashoptim_optimizer* optimizer,
                                                        size_t index, const void* source,
                                                        size_t bytes);

/* The same for a weight, in its dtype. */
FLASHOPTIM_API flashoptim_status flashoptim_read_weight(const flashoptim_optimizer* optimizer,
                                                        size_t parameter, void* target,
                                                        size_t bytes);
FLASHOPTIM_API flashoptim_status flashoptim_write_weight(flashoptim_optimizer* optimizer,
                                                         size_t parameter, const void* source,
                                                         size_t bytes);

/* Master weights as fp32 in host memory, in the weight's memory order; `count` is its number of
 * elements. Writing splits them, rounding to nearest. */
FLASHOPTIM_API flashoptim_status flashoptim_read_master_weights(
    const flashoptim_optimizer* optimizer, size_t parameter, float* master, size_t count);
FLASHOPTIM_API flashoptim_status flashoptim_write_master_weights(flashoptim_optimizer* optimizer,
                                                                 size_t parameter,
                                                                 const float* master, size_t count);

/* Writes weights, state and options to a safetensors file; a process killed meanwhile leaves the
 * old file or the new one. Reads weights and state into an optimizer of the same tensors;
 * everything is checked before the first byte is written. FLASHOPTIM_FILE_ERROR. */
FLASHOPTIM_API flashoptim_status flashoptim_save(const flashoptim_optimizer* optimizer,
                                                 const char* path);
FLASHOPTIM_API flashoptim_status flashoptim_save_with(const flashoptim_optimizer* optimizer,
                                                      const char* path,
                                                      const flashoptim_save_options* options);
FLASHOPTIM_API flashoptim_status flashoptim_load(flashoptim_optimizer* optimizer, const char* path);
/* Gives each group the options that the file has for it: learning rates, for instance. */
FLASHOPTIM_API flashoptim_status flashoptim_load_options(flashoptim_optimizer* optimizer,
                                                         const char* path);

/* Bytes of all parameters, and of one. */
FLASHOPTIM_API flashoptim_status flashoptim_memory_use(const flashoptim_optimizer* optimizer,
                                                       flashoptim_memory* memory);
FLASHOPTIM_API flashoptim_status flashoptim_parameter_memory(const flashoptim_optimizer* optimizer,
                                                             size_t parameter,
                                                             flashoptim_memory* memory);

#ifdef __cplusplus
}
#endif
/* NOLINTEND(modernize-*, readability-identifier-naming) */

#endif /* FLASHOPTIM_FLASHOPTIM_H_ */
