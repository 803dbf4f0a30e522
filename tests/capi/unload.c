/* A program that loads the library by name, steps on several threads and lets go of it again. */
#include <dlfcn.h>
#include <flashoptim/flashoptim.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 600, COLUMNS = 600 };

static float weights[ROWS * COLUMNS];
static float gradients[ROWS * COLUMNS];

static void* library;

/* The address of a function, through a copy: ISO C has no cast from void* to one. */
static void find(void* function, const char* name) {
  void* address = dlsym(library, name);
  if (address == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  memcpy(function, &address, sizeof(address));
}

static void check(flashoptim_status status) {
  if (status == FLASHOPTIM_OK) return;
  fprintf(stderr, "status %d\n", (int)status);
  exit(1);
}

static void load_step_and_unload(const char* path) {
  flashoptim_status (*set_threads)(int32_t);
  flashoptim_status (*options_init)(flashoptim_options*, size_t, int32_t);
  flashoptim_status (*builder_create)(flashoptim_builder**);
  flashoptim_status (*add_group)(flashoptim_builder*, const flashoptim_options*, size_t*);
  flashoptim_status (*add_tensor)(flashoptim_builder*, size_t, const flashoptim_tensor*);
  flashoptim_status (*create)(flashoptim_builder*, flashoptim_optimizer**);
  flashoptim_status (*set_gradient)(flashoptim_optimizer*, size_t, const void*, int32_t);
  flashoptim_status (*step)(flashoptim_optimizer*, uint64_t*);
  void (*destroy)(flashoptim_optimizer*);
  void (*builder_destroy)(flashoptim_builder*);
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
  find(&set_threads, "flashoptim_set_cpu_threads");
  find(&options_init, "flashoptim_options_init");
  find(&builder_create, "flashoptim_builder_create");
  find(&add_group, "flashoptim_builder_add_group");
  find(&add_tensor, "flashoptim_builder_add_tensor");
  find(&create, "flashoptim_optimizer_create");
  find(&set_gradient, "flashoptim_set_gradient");
  find(&step, "flashoptim_step");
  find(&destroy, "flashoptim_optimizer_destroy");
  find(&builder_destroy, "flashoptim_builder_destroy");

  flashoptim_options options;
  flashoptim_builder* builder = NULL;
  flashoptim_optimizer* optimizer = NULL;
  const int64_t shape[] = {ROWS, COLUMNS};
  flashoptim_tensor tensor = FLASHOPTIM_TENSOR_INIT;
  tensor.name = "weight";
  tensor.data = weights;
  tensor.shape = shape;
  tensor.dimensions = 2;
  check(set_threads(4));
  check(options_init(&options, sizeof(options), FLASHOPTIM_ADAMW));
  check(builder_create(&builder));
  check(add_group(builder, &options, NULL));
  check(add_tensor(builder, 0, &tensor));
  check(create(builder, &optimizer));
  builder_destroy(builder);
  check(set_gradient(optimizer, 0, gradients, FLASHOPTIM_FLOAT32));
  check(step(optimizer, NULL));
  destroy(optimizer);
  if (dlclose(library) != 0) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
}

int main(int count, char** arguments) {
  if (count != 2) return 2;
  /* The threads of the last step are still looking for another when the library would go. */
  for (int i = 0; i < 50; ++i) load_step_and_unload(arguments[1]);
  return 0;
}
