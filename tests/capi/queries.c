/* What an optimizer of the C interface says of itself, weights that go in and out, and files. */
#define _POSIX_C_SOURCE 200809L /* mkdtemp */
#include <dirent.h>
#include <flashoptim/flashoptim.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 6, COLUMNS = 70, ELEMENTS = ROWS * COLUMNS };

static int failures = 0;

#define EXPECT(condition)                                                         \
  do {                                                                            \
    if (!(condition)) {                                                           \
      ++failures;                                                                 \
      fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #condition, \
              flashoptim_last_error());                                           \
    }                                                                             \
  } while (0)
#define GOOD(call) EXPECT((call) == FLASHOPTIM_OK)

typedef struct {
  uint16_t matrix[ELEMENTS];
  float bias[ROWS];
} Model;

static void fill(Model* model, uint16_t first) {
  for (size_t i = 0; i < ELEMENTS; ++i) model->matrix[i] = (uint16_t)(first + i % 64);
  for (size_t i = 0; i < ROWS; ++i) model->bias[i] = 0.5F;
}

/* Two groups: a matrix in Fortran's order, and a vector with another learning rate. */
static flashoptim_optimizer* make(Model* model, double lr) {
  static const int64_t matrix_shape[] = {ROWS, COLUMNS};
  static const int64_t matrix_strides[] = {1, ROWS};
  static const int64_t bias_shape[] = {ROWS};
  flashoptim_builder* builder = NULL;
  flashoptim_optimizer* optimizer = NULL;
  flashoptim_options options;
  GOOD(flashoptim_builder_create(&builder));
  GOOD(flashoptim_options_init(&options, sizeof(options), FLASHOPTIM_ADAM));
  options.lr = lr;
  GOOD(flashoptim_builder_add_group(builder, &options, NULL));
  options.lr = 2 * lr;
  GOOD(flashoptim_builder_add_group(builder, &options, NULL));
  flashoptim_tensor tensor = FLASHOPTIM_TENSOR_INIT;
  tensor.name = "matrix";
  tensor.data = model->matrix;
  tensor.dtype = FLASHOPTIM_BFLOAT16;
  tensor.shape = matrix_shape;
  tensor.strides = matrix_strides;
  tensor.dimensions = 2;
  GOOD(flashoptim_builder_add_tensor(builder, 0, &tensor));
  tensor.name = "bias";
  tensor.data = model->bias;
  tensor.dtype = FLASHOPTIM_FLOAT32;
  tensor.shape = bias_shape;
  tensor.strides = NULL;
  tensor.dimensions = 1;
  GOOD(flashoptim_builder_add_tensor(builder, 1, &tensor));
  GOOD(flashoptim_optimizer_create(builder, &optimizer));
  flashoptim_builder_destroy(builder);
  return optimizer;
}

static void step(flashoptim_optimizer* optimizer, uint64_t steps) {
  float gradient[ELEMENTS];
  for (size_t i = 0; i < ELEMENTS; ++i) gradient[i] = 1e-2F * (float)(i % 7) - 2e-2F;
  for (size_t i = 0; i < 2; ++i) {
    GOOD(flashoptim_set_gradient(optimizer, i, gradient, FLASHOPTIM_FLOAT32));
  }
  while (steps-- != 0) GOOD(flashoptim_step(optimizer, NULL));
}

static void descriptions(flashoptim_optimizer* optimizer, const Model* model) {
  size_t count = 0;
  size_t group = 9;
  flashoptim_tensor tensor = FLASHOPTIM_TENSOR_INIT;
  GOOD(flashoptim_group_count(optimizer, &count));
  EXPECT(count == 2);
  GOOD(flashoptim_parameter(optimizer, 0, &tensor, &group));
  EXPECT(strcmp(tensor.name, "matrix") == 0 && tensor.data == model->matrix && group == 0);
  EXPECT(tensor.dtype == FLASHOPTIM_BFLOAT16 && tensor.dimensions == 2);
  EXPECT(tensor.shape[1] == COLUMNS && tensor.strides[0] == 1 && tensor.strides[1] == ROWS);
  GOOD(flashoptim_parameter(optimizer, 1, &tensor, NULL));
  EXPECT(strcmp(tensor.name, "bias") == 0 && tensor.strides[0] == 1);

  flashoptim_memory all = FLASHOPTIM_MEMORY_INIT;
  flashoptim_memory one = FLASHOPTIM_MEMORY_INIT;
  flashoptim_memory other = FLASHOPTIM_MEMORY_INIT;
  GOOD(flashoptim_memory_use(optimizer, &all));
  GOOD(flashoptim_parameter_memory(optimizer, 0, &one));
  GOOD(flashoptim_parameter_memory(optimizer, 1, &other));
  EXPECT(one.weights == sizeof(model->matrix) && other.weights == sizeof(model->bias));
  EXPECT(all.weights == one.weights + other.weights && all.scales == one.scales + other.scales);
  EXPECT(one.first_moment == ELEMENTS && other.first_moment == 4 * ROWS);
}

static void weights(flashoptim_optimizer* optimizer, const Model* model) {
  uint16_t copy[ELEMENTS];
  GOOD(flashoptim_read_weight(optimizer, 0, copy, sizeof(copy)));
  EXPECT(memcmp(copy, model->matrix, sizeof(copy)) == 0);
  copy[3] = 0x4000;
  GOOD(flashoptim_write_weight(optimizer, 0, copy, sizeof(copy)));
  EXPECT(model->matrix[3] == 0x4000);
}

/* The number of files of a folder, which are removed if `clear`. */
static int files_in(const char* folder, int clear) {
  int count = 0;
  DIR* open_folder = opendir(folder);
  if (open_folder == NULL) return -1;
  for (struct dirent* entry = readdir(open_folder); entry != NULL; entry = readdir(open_folder)) {
    if (entry->d_name[0] == '.') continue;
    ++count;
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
    if (clear) remove(path);
  }
  closedir(open_folder);
  return count;
}

/* Saved in shards, loaded into another optimizer, and both go on alike. */
static void files(flashoptim_optimizer* optimizer, const Model* model, const char* folder) {
  char path[512];
  snprintf(path, sizeof(path), "%s/state.safetensors.index.json", folder);
  GOOD(flashoptim_set_lr(optimizer, 1, 0.125));
  flashoptim_save_options how = FLASHOPTIM_SAVE_OPTIONS_INIT;
  how.shard_bytes = 600;
  GOOD(flashoptim_save_with(optimizer, path, &how));

  Model second;
  fill(&second, 0x3e00);
  flashoptim_optimizer* resumed = make(&second, 1.0);
  GOOD(flashoptim_load(resumed, path));
  GOOD(flashoptim_load_options(resumed, path));
  flashoptim_options options = {.struct_size = sizeof(options)};
  GOOD(flashoptim_get_options(resumed, 1, &options));
  EXPECT(options.lr == 0.125 && options.initial_lr == 0.02);
  EXPECT(memcmp(&second, model, sizeof(second)) == 0);
  step(optimizer, 2);
  step(resumed, 2);
  EXPECT(memcmp(&second, model, sizeof(second)) == 0);
  flashoptim_optimizer_destroy(resumed);

  /* The same names are written again: what is not named any more goes. */
  how.shard_bytes = 1 << 20;
  GOOD(flashoptim_save_with(optimizer, path, &how));
  EXPECT(files_in(folder, 0) == 2);
}

int main(void) {
  char folder[] = "/tmp/flashoptim-XXXXXX";
  if (mkdtemp(folder) == NULL) return 2;
  Model model;
  fill(&model, 0x3f80);
  flashoptim_optimizer* optimizer = make(&model, 0.01);
  if (optimizer != NULL) {
    step(optimizer, 3);
    descriptions(optimizer, &model);
    weights(optimizer, &model);
    files(optimizer, &model, folder);
  }
  flashoptim_optimizer_destroy(optimizer);
  files_in(folder, 1);
  rmdir(folder);
  return failures == 0 ? 0 : 1;
}
