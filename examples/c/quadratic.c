/* Fits two vectors to a target with AdamW, then with Lion: bf16 weights, 24-bit master weights,
 * 8-bit moments. Exits with 1 if a call fails or the loss does not fall. */
#include <flashoptim/flashoptim.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 64, COLUMNS = 128, ELEMENTS = ROWS * COLUMNS, STEPS = 300 };

static uint16_t weights[ELEMENTS]; /* bf16: the high half of a float */
static float bias[ROWS];
static float weight_gradient[ELEMENTS];
static float bias_gradient[ROWS];

/* Says what went wrong and stops. */
static void check(flashoptim_status status, const char* what) {
  if (status == FLASHOPTIM_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, flashoptim_status_name(status), flashoptim_last_error());
  exit(1);
}

static float from_bf16(uint16_t value) {
  const uint32_t image = (uint32_t)value << 16;
  float result;
  memcpy(&result, &image, sizeof(result));
  return result;
}

static float target(size_t i) { return 0.5F - (float)(i % 13) / 13.0F; }

/* Half the mean squared distance from the target, and its gradient times ELEMENTS. */
static double loss_and_gradients(void) {
  double sum = 0.0;
  for (size_t i = 0; i < ELEMENTS; ++i) {
    weight_gradient[i] = from_bf16(weights[i]) - target(i);
    sum += 0.5 * (double)weight_gradient[i] * (double)weight_gradient[i];
  }
  for (size_t i = 0; i < ROWS; ++i) {
    bias_gradient[i] = bias[i] - target(i);
    sum += 0.5 * (double)bias_gradient[i] * (double)bias_gradient[i];
  }
  return sum / (ELEMENTS + ROWS);
}

static flashoptim_optimizer* make_optimizer(int32_t kind, double lr) {
  flashoptim_options options;
  check(flashoptim_options_init(&options, sizeof(options), kind), "options");
  options.lr = lr;
  options.weight_decay = 0.0;

  flashoptim_builder* builder = NULL;
  size_t group = 0;
  check(flashoptim_builder_create(&builder), "builder");
  check(flashoptim_builder_add_group(builder, &options, &group), "group");

  const int64_t weight_shape[] = {ROWS, COLUMNS};
  flashoptim_tensor tensor = FLASHOPTIM_TENSOR_INIT;
  tensor.name = "weight";
  tensor.data = weights;
  tensor.dtype = FLASHOPTIM_BFLOAT16;
  tensor.shape = weight_shape;
  tensor.dimensions = 2;
  check(flashoptim_builder_add_tensor(builder, group, &tensor), "weight");

  const int64_t bias_shape[] = {ROWS};
  flashoptim_tensor second = FLASHOPTIM_TENSOR_INIT;
  second.name = "bias";
  second.data = bias;
  second.shape = bias_shape;
  second.dimensions = 1;
  check(flashoptim_builder_add_tensor(builder, group, &second), "bias");

  flashoptim_optimizer* optimizer = NULL;
  check(flashoptim_optimizer_create(builder, &optimizer), "optimizer");
  flashoptim_builder_destroy(builder);
  return optimizer;
}

static int train(const char* name, int32_t kind, double lr) {
  memset(weights, 0, sizeof(weights));
  memset(bias, 0, sizeof(bias));
  flashoptim_optimizer* optimizer = make_optimizer(kind, lr);
  check(flashoptim_set_gradient(optimizer, 0, weight_gradient, FLASHOPTIM_FLOAT32), "gradient");
  check(flashoptim_set_gradient(optimizer, 1, bias_gradient, FLASHOPTIM_FLOAT32), "gradient");

  const double first = loss_and_gradients();
  for (int step = 0; step < STEPS; ++step) {
    loss_and_gradients();
    check(flashoptim_set_lr(optimizer, 0, lr * (STEPS - step) / STEPS), "learning rate");
    check(flashoptim_step(optimizer, NULL), "step");
  }
  const double last = loss_and_gradients();

  flashoptim_memory memory = FLASHOPTIM_MEMORY_INIT;
  uint64_t steps = 0;
  check(flashoptim_memory_use(optimizer, &memory), "memory");
  check(flashoptim_step_count(optimizer, 0, &steps), "steps");
  const uint64_t kept = memory.weight_correction + memory.first_moment + memory.second_moment +
                        memory.maximum + memory.scales + memory.other;
  printf("%s: loss %.3g -> %.3g in %d steps; %.2f bytes of state per parameter\n", name, first,
         last, (int)steps, (double)kept / (ELEMENTS + ROWS));
  flashoptim_optimizer_destroy(optimizer);
  return steps == STEPS && last < 0.01 * first ? 0 : 1;
}

int main(void) {
  printf("flashoptim %s\n", flashoptim_version());
  const int adamw = train("AdamW", FLASHOPTIM_ADAMW, 0.02);
  const int lion = train("Lion", FLASHOPTIM_LION, 0.005);
  return adamw != 0 || lion != 0 ? 1 : 0;
}
