// The Open MPI peer: what a data-parallel job gets from MPI_Allreduce instead of a hub.
//
// Every rank owns a gradient, a momentum and a weights buffer of the model's size. One round is
// one allreduce (float, sum) of the gradients over all ranks, and then the optimizer step that a
// hub would have done once, done by every rank on its own copy of the weights:
//
//     g = rescale * sum + weight_decay * w
//     m = momentum * m + g
//     w = w - lr * (g + momentum * m)
//
// What was chosen so that MPI looks as good as it can:
//   - One flat buffer per round (--elements): one large message lets the collective pipeline, and
//     pays its latency once. --tensors makes one call per tensor, which is slower.
//   - The sum goes to a second buffer, so that nobody has to fill the gradients again between two
//     rounds: rounds run back to back, with no barrier and no work of ours between them.
//     --in-place sums over the gradient itself and spends the time to fill it again.
//   - Buffers are aligned to huge pages and ask for them, and are touched before the first round.
//
// Prints one JSON object. Knows nothing of hubs, chunks or windows: it shares no code with them,
// and the worth of its figures rests on that.

#include <errno.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// Gradients and first weights repeat with this period. A prime, so that no power-of-two piece
// that the collective might cut lines up with it: a piece that lands in the wrong place shows.
#define PERIOD 61
#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define MAX_TENSORS 65536
#define MAX_WORKERS 1024 // keeps every sum an integer below 2^24, where float addition is exact

static const float LEARNING_RATE = 0.01f;
static const float MOMENTUM = 0.9f;
static const float WEIGHT_DECAY = 0.0001f;

typedef struct {
    int tensors;    // allreduce calls per round
    int *lengths;   // elements of each call
    size_t elements; // their total
    int rounds;     // measured
    int warmup;     // run before, not measured
    bool step;      // whether the ranks run the optimizer
    bool in_place;  // whether the sum replaces the gradient
} Settings;

typedef struct {
    float *gradient;
    float *sum; // the gradient itself when in place
    float *momentum;
    float *weights;
} Buffers;

static int rank, workers;

// Only rank 0 speaks, and every rank leaves: all of them see the same command line.
static void fail(const char *object, const char *seen, const char *expected) {
    if (rank == 0) fprintf(stderr, "mpi_allreduce: %s: %s; expected %s\n", object, seen, expected);
    MPI_Finalize();
    exit(2);
}

static long number(const char *option, const char *text, long least, long most) {
    char *end = NULL;
    char expected[80];
    snprintf(expected, sizeof expected, "a whole number from %ld to %ld", least, most);
    if (text == NULL) fail(option, "no value", expected);
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < least || value > most) fail(option, text, expected);
    return value;
}

static void tensors(Settings *settings, char *list) {
    if (list == NULL) fail("--tensors", "no value", "lengths such as 9408,64,64");
    settings->tensors = 0;
    settings->elements = 0;
    for (char *item = strtok(list, ","); item != NULL; item = strtok(NULL, ",")) {
        if (settings->tensors == MAX_TENSORS) fail("--tensors", "too many", "at most 65536 lengths");
        int length = (int)number("--tensors", item, 1, 2147483647L);
        settings->lengths[settings->tensors++] = length;
        settings->elements += (size_t)length;
    }
    if (settings->tensors == 0) fail("--tensors", "an empty list", "lengths such as 9408,64,64");
}

static Settings parse(int argc, char **argv) {
    Settings settings = {.tensors = 1, .elements = 25557032, .rounds = 20, .warmup = 3, .step = true};
    settings.lengths = calloc(MAX_TENSORS, sizeof(int));
    if (settings.lengths == NULL) fail("settings", "no memory", "256 KiB");
    settings.lengths[0] = 25557032; // ResNet-50
    for (int i = 1; i < argc; i++) {
        // strcmp on argv[i], value in argv[i + 1]: argv ends with a NULL, which `number` reports.
        if (strcmp(argv[i], "--elements") == 0) {
            settings.tensors = 1;
            settings.lengths[0] = (int)number("--elements", argv[++i], 1, 2147483647L);
            settings.elements = (size_t)settings.lengths[0];
        } else if (strcmp(argv[i], "--tensors") == 0) {
            tensors(&settings, argv[++i]);
        } else if (strcmp(argv[i], "--rounds") == 0) {
            settings.rounds = (int)number("--rounds", argv[++i], 1, 1000000);
        } else if (strcmp(argv[i], "--warmup") == 0) {
            settings.warmup = (int)number("--warmup", argv[++i], 0, 1000000);
        } else if (strcmp(argv[i], "--no-step") == 0) {
            settings.step = false;
        } else if (strcmp(argv[i], "--in-place") == 0) {
            settings.in_place = true;
        } else {
            fail("argument", argv[i],
                 "--elements N | --tensors N,N,... | --rounds N | --warmup N | --no-step | --in-place");
        }
    }
    return settings;
}

static float *buffer(size_t elements) {
    size_t bytes = (elements * sizeof(float) + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    void *memory = aligned_alloc(HUGE_PAGE_BYTES, bytes);
    if (memory == NULL) {
        fprintf(stderr, "mpi_allreduce: rank %d: no memory for a buffer of %zu bytes; use fewer workers or elements\n",
                rank, bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    madvise(memory, bytes, MADV_HUGEPAGE); // a wish: without huge pages the run is slower, not wrong
    memset(memory, 0, bytes);
    return memory;
}

// Small integers: their sums are exact in every order, so that the check can ask for equality.
static float gradient_at(size_t element, int of_rank) { return (float)((int)(element % PERIOD) + of_rank); }

static float sum_at(size_t element) {
    return (float)(workers * (int)(element % PERIOD) + workers * (workers - 1) / 2);
}

static float first_weight_at(size_t element) { return (float)(element % PERIOD) / 64.0f; }

static void fill(float *gradient, size_t elements) {
    for (size_t i = 0; i < elements; i++) gradient[i] = gradient_at(i, rank);
}

// One element of the step, for the loop and for the check alike. Compiled with contraction off:
// a fused multiply-add in one of the two places would round differently.
static inline void nesterov(float rescale, float sum, float *momentum, float *weight) {
    float g = rescale * sum + WEIGHT_DECAY * *weight;
    *momentum = MOMENTUM * *momentum + g;
    *weight -= LEARNING_RATE * (g + MOMENTUM * *momentum);
}

static void step(size_t elements, const float *restrict sum, float *restrict momentum, float *restrict weights) {
    const float rescale = 1.0f / (float)workers;
    for (size_t i = 0; i < elements; i++) nesterov(rescale, sum[i], &momentum[i], &weights[i]);
}

static void run_round(const Settings *settings, const Buffers *buffers) {
    size_t at = 0;
    for (int t = 0; t < settings->tensors; t++) {
        const void *from = settings->in_place ? MPI_IN_PLACE : (const void *)(buffers->gradient + at);
        MPI_Allreduce(from, buffers->sum + at, settings->lengths[t], MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        at += (size_t)settings->lengths[t];
    }
    if (settings->step) step(settings->elements, buffers->sum, buffers->momentum, buffers->weights);
}

// Every element of the last sum and of the weights after all rounds, against the exact values.
static bool check(const Settings *settings, const Buffers *buffers) {
    float expected[PERIOD];
    for (size_t p = 0; p < PERIOD; p++) {
        float momentum = 0.0f;
        expected[p] = first_weight_at(p);
        for (int r = 0; settings->step && r < settings->warmup + settings->rounds; r++)
            nesterov(1.0f / (float)workers, sum_at(p), &momentum, &expected[p]);
    }
    for (size_t i = 0; i < settings->elements; i++) {
        if (buffers->sum[i] == sum_at(i) && buffers->weights[i] == expected[i % PERIOD]) continue;
        fprintf(stderr, "mpi_allreduce: rank %d element %zu: sum %.9g, weight %.9g; expected %.9g and %.9g\n", rank, i,
                buffers->sum[i], buffers->weights[i], sum_at(i), expected[i % PERIOD]);
        return false;
    }
    return true;
}

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof(double), ascending);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2.0;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &workers);
    if (workers > MAX_WORKERS) fail("workers", "too many", "at most 1024, for an exact check");
    Settings settings = parse(argc, argv);

    Buffers buffers = {.gradient = buffer(settings.elements), .momentum = buffer(settings.elements)};
    buffers.weights = buffer(settings.elements);
    buffers.sum = settings.in_place ? buffers.gradient : buffer(settings.elements);
    double *round_seconds = calloc((size_t)settings.rounds, sizeof(double));
    if (round_seconds == NULL) fail("--rounds", "no memory for the times", "fewer rounds");
    fill(buffers.gradient, settings.elements);
    for (size_t i = 0; i < settings.elements; i++) buffers.weights[i] = first_weight_at(i);

    for (int r = 0; r < settings.warmup; r++) {
        if (settings.in_place) fill(buffers.gradient, settings.elements);
        run_round(&settings, &buffers);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime(), previous = began;
    for (int r = 0; r < settings.rounds; r++) {
        if (settings.in_place) fill(buffers.gradient, settings.elements);
        run_round(&settings, &buffers);
        double now = MPI_Wtime();
        round_seconds[r] = now - previous;
        previous = now;
    }

    // Back-to-back rounds take every rank equally long but for its skew; the slowest one counts.
    double seconds = previous - began, slowest_seconds, slowest_round;
    double round = median(round_seconds, settings.rounds);
    MPI_Reduce(&seconds, &slowest_seconds, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&round, &slowest_round, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    int right = check(&settings, &buffers), all_right = 0;
    MPI_Allreduce(&right, &all_right, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
    if (rank == 0 && all_right) {
        double bytes = (double)workers * (double)settings.elements * sizeof(float);
        printf("{\"peer\":\"openmpi\",\"workers\":%d,\"elements\":%zu,\"rounds\":%d,\"seconds\":%.6f,"
               "\"median_round_seconds\":%.6f,\"goodput_gb_per_s\":%.4f,\"calls_per_round\":%d,\"step\":%s,"
               "\"in_place\":%s,\"checked\":true}\n",
               workers, settings.elements, settings.rounds, slowest_seconds, slowest_round,
               bytes / slowest_round / 1e9, settings.tensors, settings.step ? "true" : "false",
               settings.in_place ? "true" : "false");
    }
    MPI_Finalize();
    return all_right ? 0 : 1;
}
