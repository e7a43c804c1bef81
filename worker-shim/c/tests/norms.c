/* Clipping by the norm, the norm that the program reads, and skipped rounds, in a job of two workers.
 *
 *     norms HOST:PORT RANK
 *
 * Both gradients of a round are multiples of ones in two keys of 4 and 12 elements, so a mean of `m` has the norm 4 |m|. */
#include <math.h>
#include <phub.h>
#include <stdio.h>
#include <stdlib.h>

enum { WORKERS = 2, KEYS = 2 };

static const uint64_t SHAPES[KEYS][2] = {{2, 2}, {3, 4}};
static int failures;

static void check(PhubStatus status, const char *doing) {
    if (status != PHUB_STATUS_OK) {
        fprintf(stderr, "norms: %s: %s\n", doing, phub_last_error());
        exit(1);
    }
}

static PhubSession *joined(const char *hub, uint32_t rank, const char *job, const char *const *settings) {
    PhubConfig *config;
    PhubSession *session;
    const char *optimizer = "{\"name\": \"sgd\", \"learning_rate\": 1}";
    check(phub_config_new(&config, hub, job, rank, WORKERS, optimizer), "settings");
    check(phub_config_add_key(config, "a", SHAPES[0], 2, PHUB_DTYPE_F32, 1, 1), "a key");
    check(phub_config_add_key(config, "b", SHAPES[1], 2, PHUB_DTYPE_F32, 1, 1), "a key");
    check(phub_config_set(config, "join_limit", "20"), "settings");
    for (; *settings != NULL; settings += 2) {
        check(phub_config_set(config, settings[0], settings[1]), settings[0]);
    }
    check(phub_join(&session, config, NULL, NULL), "joining");
    phub_config_free(config);
    check(phub_broadcast(session), "the first weights"); /* zeros */
    return session;
}

/* Makes one round in which each element of this worker's gradient is `value`. */
static void make_round(const PhubSession *session, float value) {
    for (uint32_t key = 0; key < KEYS; key++) {
        void *gradient;
        size_t bytes;
        check(phub_gradient(session, key, &gradient, &bytes), "finding a gradient");
        for (size_t at = 0; at < bytes / sizeof(float); at++) {
            ((float *)gradient)[at] = value;
        }
        check(phub_push(session, key), "pushing");
    }
    check(phub_wait_all(session), "waiting");
}

static void expect(const PhubSession *session, float norm, uint32_t round, uint64_t skipped, float weight, int line) {
    float seen_norm;
    uint32_t seen_round;
    uint64_t seen_skipped;
    check(phub_norm(session, &seen_norm, &seen_round, &seen_skipped), "the norm");
    int is_equal = isnan(norm) ? isnan(seen_norm) : seen_norm == norm;
    if (!is_equal || seen_round != round || seen_skipped != skipped) {
        fprintf(stderr, "line %d: norm %g of round %u, %d skipped; expected %g of round %u, %d skipped\n", line,
                seen_norm, seen_round, (int)seen_skipped, norm, round, (int)skipped);
        failures++;
    }
    for (uint32_t key = 0; key < KEYS; key++) {
        const void *weights;
        size_t bytes;
        check(phub_weights(session, key, &weights, &bytes), "finding weights");
        for (size_t at = 0; at < bytes / sizeof(float); at++) {
            float seen = ((const float *)weights)[at];
            if (!(fabsf(seen - weight) < 1e-5f)) {
                fprintf(stderr, "line %d: element %zu of key %u is %g, expected %g\n", line, at, key, seen, weight);
                failures++;
                return;
            }
        }
    }
}

#define EXPECT(norm, round, skipped, weight) expect(session, norm, round, skipped, weight, __LINE__)

/* A mean of 2.5 has the norm 10, so it is scaled to 0.25; a mean of 0.125 has the norm 0.5, and stays. */
static void clips(const char *hub, uint32_t rank) {
    const char *const settings[] = {"clip_norm", "1", NULL};
    PhubSession *session = joined(hub, rank, "clips", settings);
    EXPECT(NAN, 0, 0, 0);
    make_round(session, rank == 0 ? 2 : 3);
    EXPECT(10, 1, 0, -0.25f);
    make_round(session, rank == 0 ? 0 : 0.25f);
    EXPECT(0.5f, 2, 0, -0.375f);
    check(phub_leave(session), "leaving");
    phub_session_free(session);
}

/* A round is scaled by the norm of the previous round. The program cannot read this norm. */
static void clips_by_the_last(const char *hub, uint32_t rank) {
    const char *const settings[] = {"clip_norm_last", "1", NULL};
    PhubSession *session = joined(hub, rank, "clips-by-the-last", settings);
    make_round(session, rank == 0 ? 2 : 3);
    EXPECT(NAN, 0, 0, -2.5f);
    make_round(session, 1);
    EXPECT(NAN, 0, 0, -2.6f);
    check(phub_leave(session), "leaving");
    phub_session_free(session);
}

/* One worker's NaN, then its infinity, skip the round for both workers. The round after them steps. */
static void skips(const char *hub, uint32_t rank) {
    const char *const settings[] = {"skip_nonfinite", "true", "clip_norm", "none", NULL};
    PhubSession *session = joined(hub, rank, "skips", settings);
    make_round(session, 1);
    EXPECT(4, 1, 0, -1);
    make_round(session, rank == 0 ? 1 : NAN);
    EXPECT(NAN, 2, 1, -1);
    make_round(session, rank == 0 ? -INFINITY : 1);
    EXPECT(INFINITY, 3, 2, -1);
    make_round(session, 0.5f);
    EXPECT(2, 4, 2, -1.5f);
    check(phub_leave(session), "leaving");
    phub_session_free(session);
}

/* After ten rounds a norm of more than three times their mean is skipped. */
static void skips_spikes(const char *hub, uint32_t rank) {
    const char *const settings[] = {"skip_spikes", "3", NULL};
    PhubSession *session = joined(hub, rank, "spikes", settings);
    for (int round = 0; round < 10; round++) {
        make_round(session, 1);
    }
    EXPECT(4, 10, 0, -10);
    make_round(session, 4);
    EXPECT(16, 11, 1, -10);
    make_round(session, 2);
    EXPECT(8, 12, 1, -12);
    check(phub_leave(session), "leaving");
    phub_session_free(session);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        return 2;
    }
    uint32_t rank = (uint32_t)strtoul(argv[2], NULL, 10);
    clips(argv[1], rank);
    clips_by_the_last(argv[1], rank);
    skips(argv[1], rank);
    skips_spikes(argv[1], rank);
    return failures != 0;
}
