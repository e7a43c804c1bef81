// The Open MPI peer: a data-parallel job with MPI_Allreduce instead of a hub.
//
// Every rank owns a gradient, a momentum and a weights buffer of the model's size. One round is
// one allreduce (float, sum) of the gradients over all ranks. Then every rank makes the optimizer's
// step, which a hub makes once, on its own copy of the weights:
//
//     g = rescale * sum + weight_decay * w
//     m = momentum * m + g
//     w = w - lr * (g + momentum * m)
//
// Choices that make MPI as fast as possible:
//   - --piece sums the buffer in pieces of that many elements, and makes the step of each piece while its sum is in
//     the cache. On a machine of two Zen 5 cores, 4 ranks and ResNet-50, one flat call as Open MPI is shipped gives
//     3.1 to 3.9 GB/s; pieces of 262,144 elements (1 MiB) give 6.9 to 8.1 GB/s, and so do pieces from 131,072 to
//     524,288. The flat call is the default, because most programs call MPI_Allreduce once on the whole gradient. It
//     is not the strongest rival, so a comparison with MPI names both.
//   - The sum goes to a second buffer, so the gradients need not be filled again between two
//     rounds: rounds run back to back, without a barrier or other work between them.
//   - Buffers are aligned to huge pages, request them, and are touched before the first round.
//
// Prints one JSON object. Knows nothing of hubs, chunks or windows: it shares no code with them, so
// its figures are independent.

#include <errno.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

// Gradients and first weights repeat with this period. It is a prime, so it divides no piece whose size is a power of
// two. Therefore a piece in the wrong place gives a wrong result.
#define PERIOD 61
#define HUGE_PAGE_BYTES ((size_t)2 << 20)
#define MOST_ELEMENTS 2147483647L // an MPI count is an int
#define MAX_WORKERS 1024 // keeps every sum an integer below 2^24, where float addition is exact

static const float LEARNING_RATE = 0.01f;
static const float MOMENTUM = 0.9f;
static const float WEIGHT_DECAY = 0.0001f;

typedef struct {
    long elements; // of the model
    long piece;    // elements of one allreduce call
    int rounds;    // measured
    int warmup;    // run before, not measured
} Settings;

typedef struct {
    float *gradient;
    float *sum;
    float *momentum;
    float *weights;
} Buffers;

static int rank, workers;

// Only rank 0 prints, and every rank exits: all ranks have the same command line.
static _Noreturn void fail(const char *object, const char *seen, const char *expected) {
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
    bool whole = errno == 0 && end != text && *end == '\0';
    if (!whole || value < least || value > most) fail(option, text, expected);
    return value;
}

static Settings parse(int argc, char **argv) {
    Settings settings = {.elements = 25557032, .piece = MOST_ELEMENTS, .rounds = 20, .warmup = 3}; // ResNet-50, in one call
    for (int i = 1; i < argc; i++) {
        // The value of an option is argv[i + 1]. After the last argument argv has NULL, which `number` refuses.
        if (strcmp(argv[i], "--elements") == 0) {
            settings.elements = number("--elements", argv[++i], 1, MOST_ELEMENTS);
        } else if (strcmp(argv[i], "--piece") == 0) {
            settings.piece = number("--piece", argv[++i], 1, MOST_ELEMENTS);
        } else if (strcmp(argv[i], "--rounds") == 0) {
            settings.rounds = (int)number("--rounds", argv[++i], 1, 1000000);
        } else if (strcmp(argv[i], "--warmup") == 0) {
            settings.warmup = (int)number("--warmup", argv[++i], 1, 1000000);
        } else {
            fail("argument", argv[i], "--elements N | --piece N | --rounds N | --warmup N");
        }
    }
    return settings;
}

static float *buffer(size_t elements) {
    size_t bytes = (elements * sizeof(float) + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    void *memory = aligned_alloc(HUGE_PAGE_BYTES, bytes);
    if (memory == NULL) {
        fprintf(stderr, "mpi_allreduce: rank %d: no memory for %zu bytes; use fewer workers or elements\n",
                rank, bytes);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    madvise(memory, bytes, MADV_HUGEPAGE); // optional: without huge pages the run is slower, not wrong
    memset(memory, 0, bytes);
    return memory;
}

// Small integers: their sums are exact in every order, so the check compares for equality.
static float gradient_at(size_t element, int of_rank) { return (float)((int)(element % PERIOD) + of_rank); }

static float sum_at(size_t element) {
    return (float)(workers * (int)(element % PERIOD) + workers * (workers - 1) / 2);
}

static float first_weight_at(size_t element) { return (float)(element % PERIOD) / 64.0f; }

static void step(size_t elements, const float *restrict sum, float *restrict momentum,
                 float *restrict weights) {
    const float rescale = 1.0f / (float)workers;
    for (size_t i = 0; i < elements; i++) {
        const float g = rescale * sum[i] + WEIGHT_DECAY * weights[i];
        momentum[i] = MOMENTUM * momentum[i] + g;
        weights[i] -= LEARNING_RATE * (g + MOMENTUM * momentum[i]);
    }
}

static void run_round(const Settings *settings, const Buffers *buffers) {
    for (long at = 0; at < settings->elements; at += settings->piece) {
        const long left = settings->elements - at, length = left < settings->piece ? left : settings->piece;
        float *sum = buffers->sum + at;
        MPI_Allreduce(buffers->gradient + at, sum, (int)length, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        // If the piece is small, its sum is still in the cache.
        step((size_t)length, sum, buffers->momentum + at, buffers->weights + at);
    }
}

// Compares every element of the last sum and of the weights after all rounds with the exact values. The step is written
// a second time here, so that a mistake in one version is detected. Compiled with contraction off: a fused multiply-add
// in only one version would round differently.
static bool check(const Settings *settings, const Buffers *buffers) {
    float expected[PERIOD];
    for (size_t p = 0; p < PERIOD; p++) {
        float momentum = 0.0f;
        expected[p] = first_weight_at(p);
        for (int r = 0; r < settings->warmup + settings->rounds; r++) {
            float g = sum_at(p) * (1.0f / (float)workers) + expected[p] * WEIGHT_DECAY;
            momentum = g + momentum * MOMENTUM;
            expected[p] -= (g + momentum * MOMENTUM) * LEARNING_RATE;
        }
    }
    for (size_t i = 0; i < (size_t)settings->elements; i++) {
        if (buffers->sum[i] == sum_at(i) && buffers->weights[i] == expected[i % PERIOD]) continue;
        fprintf(stderr, "mpi_allreduce: rank %d element %zu: sum %.9g, weight %.9g; expected %.9g and %.9g\n",
                rank, i, buffers->sum[i], buffers->weights[i], sum_at(i), expected[i % PERIOD]);
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

    const size_t elements = (size_t)settings.elements;
    Buffers buffers = {buffer(elements), buffer(elements), buffer(elements), buffer(elements)};
    double *round_seconds = calloc((size_t)settings.rounds, sizeof(double));
    if (round_seconds == NULL) fail("--rounds", "no memory for the times", "fewer rounds");
    for (size_t i = 0; i < elements; i++) {
        buffers.gradient[i] = gradient_at(i, rank);
        buffers.weights[i] = first_weight_at(i);
    }

    for (int r = 0; r < settings.warmup; r++) run_round(&settings, &buffers);
    MPI_Barrier(MPI_COMM_WORLD);
    double began = MPI_Wtime(), previous = began;
    for (int r = 0; r < settings.rounds; r++) {
        run_round(&settings, &buffers);
        double now = MPI_Wtime();
        round_seconds[r] = now - previous;
        previous = now;
    }

    // Rounds run back to back, so all ranks take equally long except for skew. The slowest rank counts.
    double seconds = previous - began, slowest_seconds, slowest_round;
    double round = median(round_seconds, settings.rounds);
    MPI_Reduce(&seconds, &slowest_seconds, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&round, &slowest_round, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    int right = check(&settings, &buffers), all_right = 0;
    MPI_Allreduce(&right, &all_right, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
    if (rank == 0 && all_right) {
        double bytes = (double)workers * (double)elements * sizeof(float);
        printf("{\"peer\":\"openmpi\",\"workers\":%d,\"elements\":%zu,\"rounds\":%d,\"seconds\":%.6f,"
               "\"median_round_seconds\":%.6f,\"goodput_gb_per_s\":%.4f,\"checked\":true}\n",
               workers, elements, settings.rounds, slowest_seconds, slowest_round, bytes / slowest_round / 1e9);
    }
    MPI_Finalize();
    return all_right ? 0 : 1;
}
