/* Fits a line to points with several workers: the smallest complete program with libphub.
 *
 *     phub-server serve &
 *     cc worker-shim/c/examples/fit.c -I worker-shim/include -L target/release -Wl,-rpath,$PWD/target/release \
 *         -lphub -lm -o fit
 *     ./fit 127.0.0.1:7077 0 2 & ./fit 127.0.0.1:7077 1 2
 *
 * Each worker has its own points of y = 3x - 2. The hub sums the workers' gradients and steps. After 400 rounds every
 * worker has slope 3 and intercept -2. */
#include <math.h>
#include <phub.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOPE, INTERCEPT, KEYS };
enum { POINTS = 64, ROUNDS = 400 };

static volatile sig_atomic_t stopped;

static void on_signal(int number) {
    (void)number;
    stopped = 1;
}

/* Called while a call waits, so that Ctrl-C ends it. */
static int interrupted(void *context) {
    (void)context;
    return stopped;
}

static void check(PhubStatus status, const char *doing) {
    if (status != PHUB_STATUS_OK) {
        fprintf(stderr, "fit: %s: %s\n", doing, phub_last_error());
        exit(1);
    }
}

/* The addresses of a key's gradient and weights: one float each. */
static float *gradient(const PhubSession *session, uint32_t key) {
    void *data;
    size_t bytes;
    check(phub_gradient(session, key, &data, &bytes), "finding a gradient");
    return data;
}

static const float *weights(const PhubSession *session, uint32_t key) {
    const void *data;
    size_t bytes;
    check(phub_weights(session, key, &data, &bytes), "finding weights");
    return data;
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: fit HOST:PORT RANK WORKERS\n");
        return 2;
    }
    uint32_t rank = (uint32_t)strtoul(argv[2], NULL, 10);
    uint32_t workers = (uint32_t)strtoul(argv[3], NULL, 10);
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    sigaction(SIGINT, &action, NULL);

    PhubConfig *config;
    PhubSession *session;
    const char *optimizer = "{\"name\": \"sgd\", \"learning_rate\": 0.2}";
    check(phub_config_new(&config, argv[1], "fit", rank, workers, optimizer), "settings");
    const uint64_t one[] = {1};
    check(phub_config_add_key(config, "slope", one, 1, PHUB_DTYPE_F32, 1, 1), "the slope's key");
    check(phub_config_add_key(config, "intercept", one, 1, PHUB_DTYPE_F32, 1, 1), "the intercept's key");
    check(phub_config_set(config, "join_limit", "20"), "settings");
    check(phub_config_set(config, "hub_wait", "2"), "settings");
    check(phub_join(&session, config, interrupted, NULL), "joining");
    phub_config_free(config);

    *gradient(session, SLOPE) = 0; /* rank 0's are the first weights of all workers */
    *gradient(session, INTERCEPT) = 0;
    check(phub_broadcast(session), "the first weights");
    for (int round = 0; round < ROUNDS; round++) {
        float slope = *weights(session, SLOPE), intercept = *weights(session, INTERCEPT);
        float by_slope = 0, by_intercept = 0;
        for (uint32_t point = 0; point < POINTS; point++) {
            /* The sum of all workers' parts is the gradient of the mean square. */
            float points = (float)(POINTS * workers), x = (float)(point * workers + rank) / points;
            float error = slope * x + intercept - (3 * x - 2);
            by_slope += 2 * error * x / points;
            by_intercept += 2 * error / points;
        }
        *gradient(session, INTERCEPT) = by_intercept;
        check(phub_push(session, INTERCEPT), "pushing"); /* in the order of a backward pass, which ends with the first layer */
        *gradient(session, SLOPE) = by_slope;
        check(phub_push(session, SLOPE), "pushing");
        for (uint32_t key = 0; key < KEYS; key++) {
            check(phub_wait(session, key), "waiting");
        }
    }
    float slope = *weights(session, SLOPE), intercept = *weights(session, INTERCEPT);
    check(phub_leave(session), "leaving");
    phub_session_free(session);
    printf("worker %u: y = %.3f x %+.3f\n", rank, slope, intercept);
    return fabsf(slope - 3) < 0.1f && fabsf(intercept + 2) < 0.1f ? 0 : 1;
}
