/* Every function refuses what it cannot use, with its code and a message, and goes on working. The
 * tables are one row per wrong input. */
#include <flashoptim/flashoptim.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

static int failures = 0;

static void expect(flashoptim_status got, flashoptim_status wanted, const char* message,
                   const char* what) {
  const char* said = flashoptim_last_error();
  if (got == wanted && (message == NULL || strstr(said, message) != NULL)) return;
  ++failures;
  fprintf(stderr, "%s: %s, \"%s\"; expected %s, \"%s\"\n", what, flashoptim_status_name(got), said,
          flashoptim_status_name(wanted), message == NULL ? "" : message);
}

/* A call that must succeed, and one that must be refused with a message. */
#define GOOD(call) expect((call), FLASHOPTIM_OK, NULL, #call)
#define BAD(call, message) expect((call), FLASHOPTIM_INVALID_ARGUMENT, (message), #call)

static float weight[8] = {1, 1, 1, 1, 1, 1, 1, 1};
static const int64_t good_shape[] = {4, 2};

static flashoptim_tensor good_tensor(void) {
  flashoptim_tensor tensor = FLASHOPTIM_TENSOR_INIT;
  tensor.name = "w";
  tensor.data = weight;
  tensor.shape = good_shape;
  tensor.dimensions = 2;
  return tensor;
}

static void descriptions(flashoptim_builder* builder) {
  static const int64_t huge[] = {INT64_MAX, INT64_MAX};
  static const int64_t huge_empty[] = {INT64_MAX, INT64_MAX, 0};
  static const int64_t negative[] = {-2, 4};
  static const int64_t holes[] = {8, 1};
  static const int64_t smallest[] = {INT64_MIN, INT64_MIN};
  static const int64_t zero[] = {0, 0};
  enum { SIZE, NAME, SHAPE, STRIDES, DIMENSIONS, DTYPE, DEVICE, INDEX, RESERVED };
  static const struct {
    int member;
    int64_t number;
    const void* pointer;
    const char* message;
  } rows[] = {
      {SIZE, 0, NULL, "struct_size 0"},
      {SIZE, sizeof(flashoptim_tensor) - 1, NULL, "struct_size 63"},
      {SIZE, sizeof(flashoptim_tensor) + 8, NULL, "struct_size 72"},
      {SIZE, -1, NULL, "struct_size"},
      {NAME, 0, NULL, "no name"},
      {NAME, 0, "", "has no name"},
      {SHAPE, 0, NULL, "tensor 'w': its shape is null"},
      {SHAPE, 0, huge, "elements; check the sizes"},
      {SHAPE, 3, huge_empty, "elements; check the sizes"},
      {SHAPE, 0, negative, "tensor 'w': a dimension has the size -2"},
      {SHAPE, 0, smallest, "a dimension has the size -9223372036854775808"},
      {STRIDES, 0, holes, "holes or overlaps"},
      {STRIDES, 0, zero, "holes or overlaps"},
      {STRIDES, 0, huge, "holes or overlaps"},
      {STRIDES, 0, smallest, "holes or overlaps"},
      {DIMENSIONS, 65, NULL, "tensor 'w': it has 65 dimensions"},
      {DIMENSIONS, -1, NULL, "tensor 'w': it has 18446744073709551615 dimensions"},
      {DTYPE, 3, NULL, "tensor 'w': its dtype is 3"},
      {DTYPE, -1, NULL, "tensor 'w': its dtype is -1"},
      {DEVICE, 2, NULL, "tensor 'w': its device_type is 2"},
      {INDEX, -1, NULL, "tensor 'w': the device index is -1"},
      {INDEX, 1, NULL, "on the CPU it must be 0"},
      {RESERVED, 7, NULL, "a reserved member is 7"},
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
    flashoptim_tensor tensor = good_tensor();
    switch (rows[i].member) {
      case SIZE:
        tensor.struct_size = (size_t)rows[i].number;
        break;
      case NAME:
        tensor.name = rows[i].pointer;
        break;
      case SHAPE:
        tensor.shape = rows[i].pointer;
        if (rows[i].number != 0) tensor.dimensions = (size_t)rows[i].number;
        break;
      case STRIDES:
        tensor.strides = rows[i].pointer;
        break;
      case DIMENSIONS:
        tensor.dimensions = (size_t)rows[i].number;
        break;
      case DTYPE:
        tensor.dtype = (int32_t)rows[i].number;
        break;
      case DEVICE:
        tensor.device_type = (int32_t)rows[i].number;
        break;
      case INDEX:
        tensor.device_index = (int32_t)rows[i].number;
        break;
      default:
        tensor.reserved = (int32_t)rows[i].number;
        break;
    }
    BAD(flashoptim_builder_add_tensor(builder, 0, &tensor), rows[i].message);
  }
  const flashoptim_tensor tensor = good_tensor();
  BAD(flashoptim_builder_add_tensor(NULL, 0, &tensor), "builder is null");
  BAD(flashoptim_builder_add_tensor(builder, 0, NULL), "tensor is null");
  BAD(flashoptim_builder_add_tensor(builder, 1, &tensor), "parameter group 1 of 1");
  GOOD(flashoptim_builder_add_tensor(builder, 0, &tensor));
}

static void options(flashoptim_builder* builder) {
  flashoptim_options good;
  BAD(flashoptim_options_init(NULL, sizeof(good), FLASHOPTIM_ADAMW), "options is null");
  BAD(flashoptim_options_init(&good, 0, FLASHOPTIM_ADAMW), "struct_size is 0");
  BAD(flashoptim_options_init(&good, sizeof(good) + 1, FLASHOPTIM_ADAMW), "struct_size is 105");
  BAD(flashoptim_options_init(&good, sizeof(good), 5), "optimizer is 5");
  BAD(flashoptim_options_init(&good, sizeof(good), -1), "optimizer is -1");
  GOOD(flashoptim_options_init(&good, sizeof(good), FLASHOPTIM_ADAMW));

  flashoptim_options changed[] = {good, good, good, good, good, good, good, good, good, good, good};
  static const char* const messages[] = {
      "struct_size 103",          "optimizer is 9",     "codec is 3",
      "nonfinite is -1",          "bits must be 16",    "lr must be",
      "betas[0] must be",         "eps must be",        "quantize must be 0 or 1, not 2",
      "a reserved member is 255", "initial_lr must be",
  };
  changed[0].struct_size -= 1;
  changed[1].optimizer = 9;
  changed[2].codec = 3;
  changed[3].nonfinite = -1;
  changed[4].master_weight_bits = 8;
  changed[5].lr = (double)NAN;
  changed[6].beta1 = 1.0;
  changed[7].eps = (double)INFINITY;
  changed[8].quantize = 2;
  changed[9].reserved[1] = 255;
  changed[10].initial_lr = (double)NAN;
  for (size_t i = 0; i < sizeof(changed) / sizeof(changed[0]); ++i) {
    BAD(flashoptim_builder_add_group(builder, &changed[i], NULL), messages[i]);
  }
  BAD(flashoptim_builder_add_group(NULL, &good, NULL), "builder is null");
  BAD(flashoptim_builder_add_group(builder, NULL, NULL), "options is null");
  GOOD(flashoptim_builder_add_group(builder, &good, NULL));
  GOOD(flashoptim_options_init(&good, sizeof(good), FLASHOPTIM_LION));
  BAD(flashoptim_builder_add_group(builder, &good, NULL), "of Lion and those of group 0 of AdamW");
}

static void layouts(flashoptim_builder* builder) {
  size_t count = 0;
  flashoptim_state_tensor state = FLASHOPTIM_STATE_TENSOR_INIT;
  BAD(flashoptim_builder_state_count(builder, NULL), "count is null");
  GOOD(flashoptim_builder_state_count(builder, &count));
  BAD(flashoptim_builder_state(builder, count, &state), "state tensor 4 of 4");
  BAD(flashoptim_builder_set_state_memory(builder, count, weight), "state tensor 4 of 4");
  BAD(flashoptim_builder_keep_state(builder, 2), "keep must be 0 or 1, not 2");
  state.struct_size = 1;
  BAD(flashoptim_builder_state(builder, 0, &state), "struct_size 1");

  flashoptim_optimizer* optimizer = NULL;
  BAD(flashoptim_optimizer_create(NULL, &optimizer), "builder is null");
  BAD(flashoptim_optimizer_create(builder, NULL), "optimizer is null");
  GOOD(flashoptim_builder_set_state_memory(builder, 2, weight));
  BAD(flashoptim_optimizer_create(builder, &optimizer), "overlaps with");
  GOOD(flashoptim_builder_set_state_memory(builder, 2, NULL));
}

static void files(flashoptim_optimizer* optimizer) {
  flashoptim_save_options how = FLASHOPTIM_SAVE_OPTIONS_INIT;
  BAD(flashoptim_save(optimizer, NULL), "path is null");
  BAD(flashoptim_load(NULL, "x.safetensors"), "optimizer is null");
  BAD(flashoptim_load_options(optimizer, NULL), "path is null");
  BAD(flashoptim_save_with(optimizer, "x.safetensors", NULL), "options is null");
  how.reserved = 1;
  BAD(flashoptim_save_with(optimizer, "x.safetensors", &how), "a reserved member is 1");
  how.reserved = 0;
  how.struct_size = 16;
  BAD(flashoptim_save_with(optimizer, "x.safetensors", &how), "options has struct_size 16");
  how.struct_size = sizeof(how);
  how.shard_bytes = 1;
  static const char* const nowhere = "no/such/folder/x.safetensors";
  expect(flashoptim_save_with(optimizer, nowhere, &how), FLASHOPTIM_FILE_ERROR,
         "shards need a name", "shards of a single file");
  expect(flashoptim_save_with(optimizer, "no/such/folder/x.safetensors.index.json", &how),
         FLASHOPTIM_FILE_ERROR, "no temporary file can be made beside it: No such file",
         "shards in no folder");
  expect(flashoptim_load(optimizer, nowhere), FLASHOPTIM_FILE_ERROR, nowhere, "no file");
  expect(flashoptim_load_options(optimizer, nowhere), FLASHOPTIM_FILE_ERROR, nowhere, "no file");
  expect(flashoptim_save(optimizer, nowhere), FLASHOPTIM_FILE_ERROR, nowhere, "no folder");
}

/* A message that is cut for its length ends with a whole character. */
static void long_names(flashoptim_optimizer* optimizer) {
  static char name[6000];
  size_t index = 0;
  for (size_t first = 0; first < 2; ++first) {
    memset(name, 'a', first);
    for (size_t i = first; i + 2 < sizeof(name); i += 2) memcpy(name + i, "\xc3\xa4", 2);
    BAD(flashoptim_find_parameter(optimizer, name, &index), "no parameter is named '");
    const char* message = flashoptim_last_error();
    const size_t length = strlen(message);
    if (length < 2000 || memcmp(message + length - 2, "\xc3\xa4", 2) != 0) {
      BAD(FLASHOPTIM_OK, "a message of whole characters");
    }
  }
}

static void calls(flashoptim_optimizer* optimizer) {
  float buffer[8] = {0};
  size_t index = 0;
  uint64_t steps = 0;
  flashoptim_state_tensor state = FLASHOPTIM_STATE_TENSOR_INIT;
  flashoptim_memory memory = FLASHOPTIM_MEMORY_INIT;
  flashoptim_tensor tensor = FLASHOPTIM_TENSOR_INIT;
  flashoptim_options options;
  options.struct_size = sizeof(options);
  BAD(flashoptim_set_gradient(NULL, 0, buffer, FLASHOPTIM_FLOAT32), "optimizer is null");
  BAD(flashoptim_set_gradient(optimizer, 1, buffer, FLASHOPTIM_FLOAT32), "parameter 1 of 1");
  BAD(flashoptim_set_gradient(optimizer, 0, NULL, FLASHOPTIM_FLOAT32), "tensor 'w': the gradient");
  BAD(flashoptim_set_gradient(optimizer, 0, buffer, FLASHOPTIM_INT8), "dtype is 3");
  BAD(flashoptim_clear_gradient(optimizer, SIZE_MAX), "of 1");
  BAD(flashoptim_set_gradient_scale(optimizer, -1.0F), "gradient scale must be");
  BAD(flashoptim_set_stream(optimizer, 0, NULL), "no parameter is on GPU 0");
  BAD(flashoptim_step(NULL, NULL), "optimizer is null");
  BAD(flashoptim_get_options(optimizer, 1, &options), "parameter group 1 of 1");
  BAD(flashoptim_get_options(optimizer, 0, NULL), "options is null");
  BAD(flashoptim_set_options(optimizer, 0, NULL), "options is null");
  BAD(flashoptim_set_lr(optimizer, 0, -1.0), "parameter group 0: lr must be");
  BAD(flashoptim_parameter_count(NULL, &index), "optimizer is null");
  BAD(flashoptim_parameter_count(optimizer, NULL), "count is null");
  BAD(flashoptim_find_parameter(optimizer, NULL, &index), "name is null");
  BAD(flashoptim_find_parameter(optimizer, "v", &index), "no parameter is named 'v'");
  BAD(flashoptim_step_count(optimizer, 1, &steps), "parameter 1 of 1");
  BAD(flashoptim_step_count(optimizer, 0, NULL), "count is null");
  BAD(flashoptim_state_count(optimizer, NULL), "count is null");
  BAD(flashoptim_state(optimizer, 99, &state), "state tensor 99 of 4");
  BAD(flashoptim_find_state(optimizer, 0, "exp_avg_scale", &index), "tensor 'w': its state has no");
  BAD(flashoptim_find_state(optimizer, 0, NULL, &index), "name is null");
  BAD(flashoptim_read_state(optimizer, 2, buffer, 31), "its 'exp_avg' has 32 bytes, not 31");
  BAD(flashoptim_read_state(optimizer, 2, NULL, 32), "target is null");
  BAD(flashoptim_write_state(optimizer, 2, NULL, 32), "source is null");
  buffer[0] = -1.0F;
  BAD(flashoptim_write_state(optimizer, 0, buffer, 4), "the step count is -1");
  BAD(flashoptim_read_master_weights(optimizer, 0, buffer, 7), "7 master weights for 8 elements");
  BAD(flashoptim_write_master_weights(optimizer, 0, NULL, 8), "master is null");
  BAD(flashoptim_read_weight(optimizer, 0, buffer, 31), "its weight has 32 bytes, not 31");
  BAD(flashoptim_write_weight(optimizer, 0, NULL, 32), "source is null");
  BAD(flashoptim_write_weight(optimizer, 1, buffer, 32), "parameter 1 of 1");
  BAD(flashoptim_group_count(optimizer, NULL), "count is null");
  BAD(flashoptim_parameter(optimizer, 0, NULL, NULL), "tensor is null");
  BAD(flashoptim_parameter(optimizer, 1, &tensor, NULL), "parameter 1 of 1");
  BAD(flashoptim_memory_use(optimizer, NULL), "memory is null");
  BAD(flashoptim_parameter_memory(optimizer, 1, &memory), "parameter 1 of 1");
  memory.struct_size = 0;
  BAD(flashoptim_memory_use(optimizer, &memory), "memory has struct_size 0");
  BAD(flashoptim_set_cpu_threads(0), "0");
  files(optimizer);

  for (size_t i = 0; i < 8; ++i) {
    if (weight[i] != 1.0F) BAD(FLASHOPTIM_OK, "a refused call has changed a weight");
  }
  buffer[0] = INFINITY;
  GOOD(flashoptim_get_options(optimizer, 0, &options));
  options.nonfinite = FLASHOPTIM_NONFINITE_ERROR;
  GOOD(flashoptim_set_options(optimizer, 0, &options));
  GOOD(flashoptim_set_gradient(optimizer, 0, buffer, FLASHOPTIM_FLOAT32));
  expect(flashoptim_step(optimizer, NULL), FLASHOPTIM_NONFINITE_GRADIENT, "the gradient of 'w'",
         "a step with an infinite gradient");
  buffer[0] = 0.0F;
  GOOD(flashoptim_step(optimizer, NULL));
  GOOD(flashoptim_step_count(optimizer, 0, &steps));
  if (steps != 1) BAD(FLASHOPTIM_OK, "the step that failed was counted");
}

int main(void) {
  flashoptim_builder* builder = NULL;
  flashoptim_optimizer* optimizer = NULL;
  BAD(flashoptim_builder_create(NULL), "builder is null");
  GOOD(flashoptim_builder_create(&builder));
  BAD(flashoptim_optimizer_create(builder, &optimizer), "at least one parameter group");
  options(builder);
  descriptions(builder);
  layouts(builder);
  GOOD(flashoptim_optimizer_create(builder, &optimizer));
  if (optimizer != NULL) calls(optimizer);
  if (optimizer != NULL) long_names(optimizer);
  flashoptim_optimizer_destroy(optimizer);
  flashoptim_builder_destroy(builder);
  flashoptim_optimizer_destroy(NULL);
  flashoptim_builder_destroy(NULL);
  if (strcmp(flashoptim_status_name(1), "FLASHOPTIM_INVALID_ARGUMENT") != 0 ||
      strcmp(flashoptim_status_name(-1), "unknown") != 0 ||
      strcmp(flashoptim_status_name(7), "unknown") != 0) {
    BAD(FLASHOPTIM_OK, "names of codes");
  }
  return failures == 0 ? 0 : 1;
}
