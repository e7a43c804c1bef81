/* Every misuse of libphub, and the error that it returns. */
#include <math.h>
#include <phub.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures;

static void expect(PhubStatus seen, PhubStatus expected, const char *words, int line) {
    if (seen != expected) {
        fprintf(stderr, "line %d: status %d, expected %d: %s\n", line, seen, expected, phub_last_error());
        failures++;
    } else if (seen != PHUB_STATUS_OK && strstr(phub_last_error(), words) == NULL) {
        fprintf(stderr, "line %d: expected \"%s\" in: %s\n", line, words, phub_last_error());
        failures++;
    }
}

#define EXPECT(call, status, words) expect(call, PHUB_STATUS_##status, words, __LINE__)
#define FINE(call) expect(call, PHUB_STATUS_OK, "", __LINE__)

static const char *SGD = "{\"name\": \"sgd\", \"learning_rate\": 0.5}";
static const uint64_t SHAPE[] = {2, 3};

static PhubConfig *settings(const char *hub, const char *job, uint32_t workers) {
    PhubConfig *config;
    FINE(phub_config_new(&config, hub, job, 0, workers, SGD));
    FINE(phub_config_add_key(config, "first", SHAPE, 2, PHUB_DTYPE_F32, 1, 1));
    return config;
}

static void wrong_settings(const char *hub) {
    PhubConfig *config;
    EXPECT(phub_config_new(NULL, hub, "job", 0, 1, SGD), INVALID, "config is null");
    EXPECT(phub_config_new(&config, NULL, "job", 0, 1, SGD), INVALID, "hub is null");
    EXPECT(phub_config_new(&config, "\xff", "job", 0, 1, SGD), INVALID, "UTF-8");
    EXPECT(phub_config_new(&config, hub, "job", 0, 1, "{}"), INVALID, "name");
    EXPECT(phub_config_new(&config, hub, "job", 0, 1, "sgd"), INVALID, "optimizer sgd");
    config = settings(hub, "job", 1);
    EXPECT(phub_config_add_key(NULL, "a", SHAPE, 2, PHUB_DTYPE_F32, 1, 1), INVALID, "config is null");
    EXPECT(phub_config_add_key(config, "a", NULL, 2, PHUB_DTYPE_F32, 1, 1), INVALID, "shape is null");
    EXPECT(phub_config_add_key(config, "a", SHAPE, 2, 17, 1, 1), INVALID, "type 17");
    EXPECT(phub_config_set(config, "no such", "1"), INVALID, "there are chunk_bytes");
    EXPECT(phub_config_set(config, "chunk_bytes", "many"), INVALID, "\"chunk_bytes\", \"many\": expected a whole number");
    EXPECT(phub_config_set(config, "on_loss", "shrug"), INVALID, "stop or continue");
    EXPECT(phub_config_set(config, "join_limit", "-1"), INVALID, "join_limit");
    EXPECT(phub_config_set(config, "compression", "zip"), INVALID, "no codec has this name");
    EXPECT(phub_config_set(config, "clip_norm", "much"), INVALID, "\"clip_norm\", \"much\"");
    EXPECT(phub_config_set(config, "skip_nonfinite", "1"), INVALID, "\"skip_nonfinite\", \"1\"");
    FINE(phub_config_set(config, "compression", "qsgd:8:512"));
    FINE(phub_config_set(config, "compression", "none"));
    FINE(phub_config_set(config, "seed", "7"));
    FINE(phub_config_set(config, "schedule", "p3"));
    EXPECT(phub_config_set(config, "pull", "some"), INVALID, "ibatch, greedy, layer or all");
    FINE(phub_config_set(config, "pull", "none"));
    const uint32_t layer[] = {0};
    EXPECT(phub_config_add_layer(NULL, layer, 1), INVALID, "config is null");
    EXPECT(phub_config_add_layer(config, NULL, 1), INVALID, "layer 0: it has no keys");
    EXPECT(phub_config_add_layer(config, layer, 0), INVALID, "layer 0: it has no keys");
    EXPECT(phub_config_set(config, "dma_buf", "7:x"), INVALID, "DESCRIPTOR:OFFSET");
    size_t offset, bytes;
    FINE(phub_config_add_key(config, "second", SHAPE, 1, PHUB_DTYPE_F32, 1, 1));
    FINE(phub_config_place(config, 1, &offset, &bytes));
    if (offset != 64 || bytes != 8) {
        fprintf(stderr, "key 1 is at %zu and has %zu bytes\n", offset, bytes);
        failures++;
    }
    EXPECT(phub_config_place(config, 2, &offset, &bytes), INVALID, "key 2 does not exist; the job has 2 keys");
    EXPECT(phub_config_place(config, 1, NULL, &bytes), INVALID, "offset is null");
    FINE(phub_config_set(config, "transport", "shm"));
    phub_config_free(config);
    phub_config_free(NULL);
    phub_session_free(NULL);
}

static void wrong_pulls(const char *hub) {
    PhubSession *session;
    PhubConfig *config = settings(hub, "pulls", 1);
    const uint32_t all[] = {0, 1}, more[] = {2};
    FINE(phub_config_add_key(config, "second", SHAPE, 2, PHUB_DTYPE_F32, 1, 1));
    FINE(phub_config_add_layer(config, all, 2));
    EXPECT(phub_join(&session, config, NULL, NULL), INVALID, "set \"pull\"");
    FINE(phub_config_set(config, "pull", "ibatch"));
    EXPECT(phub_join(&session, config, NULL, NULL), INVALID, "only kvstore");
    FINE(phub_config_set(config, "schedule", "kvstore"));
    FINE(phub_config_add_layer(config, more, 1));
    EXPECT(phub_join(&session, config, NULL, NULL), INVALID, "key 2 does not exist");
    phub_config_free(config);
}

/* A layer of two keys and a layer of one key: there is a plan after six rounds. */
static void pulls(const char *hub) {
    enum { KEYS = 3, ROUNDS = 8 };
    PhubSession *session;
    PhubConfig *config = settings(hub, "pulls", 1);
    const uint32_t first[] = {1, 0}, last[] = {2};
    FINE(phub_config_add_key(config, "second", SHAPE, 2, PHUB_DTYPE_F32, 1, 1));
    FINE(phub_config_add_key(config, "third", SHAPE, 2, PHUB_DTYPE_F32, 1, 1));
    FINE(phub_config_set(config, "schedule", "kvstore"));
    FINE(phub_config_set(config, "pull", "ibatch"));
    FINE(phub_config_add_layer(config, first, 2));
    FINE(phub_config_add_layer(config, last, 1));
    FINE(phub_join(&session, config, NULL, NULL));
    phub_config_free(config);
    FINE(phub_broadcast(session));
    PhubPullPlan plan;
    char text[200] = "?";
    FINE(phub_pull_plan(session, &plan));
    FINE(phub_pull_plan_text(session, text, sizeof text));
    if (plan.batches != 0 || !isnan(plan.predicted) || text[0] != 0) {
        fprintf(stderr, "no plan yet, and %zu batches: %s\n", plan.batches, text);
        failures++;
    }
    FINE(phub_push(session, 1));
    EXPECT(phub_wait(session, 1), ORDER, "push every key of a round before");
    FINE(phub_push(session, 0));
    FINE(phub_push(session, 2));
    FINE(phub_wait_all(session));
    for (int round = 0; round < ROUNDS; round++) {
        for (uint32_t key = KEYS; key-- > 0;) {
            FINE(phub_push(session, key));
        }
        for (uint32_t key = 0; key < KEYS; key++) {
            FINE(phub_wait(session, key));
        }
    }
    FINE(phub_pull_plan(session, &plan));
    FINE(phub_pull_plan_text(session, text, sizeof text));
    /* The plan is made at the first push of round 7; the time of round 7 is known at the first push of round 8. */
    if (plan.batches < 1 || plan.batches > 2 || plan.profiles != 1 || plan.rounds != 1 || isnan(plan.start_up) ||
        isnan(plan.predicted) || isnan(plan.measured) || strncmp(text, "ibatch, ", 8) != 0) {
        fprintf(stderr, "%zu batches, %u profiles, %u rounds: %s\n", plan.batches, plan.profiles, plan.rounds, text);
        failures++;
    }
    char cut[7];
    FINE(phub_pull_plan_text(session, cut, sizeof cut));
    if (strcmp(cut, "ibatch") != 0) {
        fprintf(stderr, "cut to %s\n", cut);
        failures++;
    }
    EXPECT(phub_pull_plan(session, NULL), INVALID, "plan is null");
    EXPECT(phub_pull_plan_text(session, NULL, 1), INVALID, "room for a text");
    EXPECT(phub_pull_plan_text(session, text, 0), INVALID, "room for a text");
    FINE(phub_leave(session));
    phub_session_free(session);
}

static int give_up(void *asked) {
    ++*(int *)asked;
    return 1;
}

static void wrong_joins(const char *hub) {
    PhubSession *session;
    EXPECT(phub_join(&session, NULL, NULL, NULL), INVALID, "config is null");
    PhubConfig *config = settings(hub, "bad name!", 1);
    EXPECT(phub_join(NULL, config, NULL, NULL), INVALID, "session is null");
    EXPECT(phub_join(&session, config, NULL, NULL), INVALID, "job name");
    phub_config_free(config);
    config = settings(hub, "lonely", 2);
    int asked = 0;
    EXPECT(phub_join(&session, config, give_up, &asked), INTERRUPTED, "the other workers");
    if (asked != 1) {
        fprintf(stderr, "asked %d times\n", asked);
        failures++;
    }
    phub_config_free(config);
}

/* Values that cannot be a bound of the norm, and settings that exclude each other. */
static void wrong_norms(const char *hub) {
    const char *const wrong[] = {"0", "-1", "nan", "inf"};
    PhubSession *session;
    for (size_t at = 0; at < sizeof wrong / sizeof *wrong; at++) {
        PhubConfig *config = settings(hub, "norms", 1);
        FINE(phub_config_set(config, "clip_norm", wrong[at]));
        EXPECT(phub_join(&session, config, NULL, NULL), INVALID, "clip_norm");
        phub_config_free(config);
    }
    PhubConfig *config = settings(hub, "norms", 1);
    FINE(phub_config_set(config, "skip_nonfinite", "true"));
    FINE(phub_config_set(config, "clip_norm_last", "1"));
    EXPECT(phub_join(&session, config, NULL, NULL), INVALID, "skip_nonfinite");
    FINE(phub_config_set(config, "clip_norm_last", "none"));
    FINE(phub_join(&session, config, NULL, NULL));
    phub_config_free(config);
    float norm;
    uint32_t round;
    uint64_t skipped;
    EXPECT(phub_norm(NULL, &norm, &round, &skipped), INVALID, "session is null");
    EXPECT(phub_norm(session, NULL, &round, &skipped), INVALID, "norm is null");
    EXPECT(phub_norm(session, &norm, NULL, &skipped), INVALID, "round is null");
    EXPECT(phub_norm(session, &norm, &round, NULL), INVALID, "skipped is null");
    FINE(phub_leave(session));
    phub_session_free(session);
}

/* A step by the norm of all gradients needs all keys. */
static void waits_for_a_norm(const char *hub) {
    PhubSession *session;
    PhubConfig *config = settings(hub, "clipped", 1);
    FINE(phub_config_add_key(config, "second", SHAPE, 2, PHUB_DTYPE_F32, 1, 1));
    FINE(phub_config_set(config, "clip_norm", "1"));
    FINE(phub_join(&session, config, NULL, NULL));
    phub_config_free(config);
    FINE(phub_broadcast(session));
    FINE(phub_push(session, 0));
    EXPECT(phub_wait(session, 0), ORDER, "push every key of a round before the first wait");
    FINE(phub_push(session, 1));
    FINE(phub_wait(session, 0));
    FINE(phub_leave(session));
    phub_session_free(session);
}

/* Runs after the thread's own data is gone, including the text of its last error. */
static void at_the_end_of_a_thread(void *session) {
    uint32_t round = 0;
    if (phub_push(session, 99) != PHUB_STATUS_INVALID || phub_next_round(session, &round) != PHUB_STATUS_OK || round != 1) {
        fprintf(stderr, "calls at the end of a thread, round %u: %s\n", round, phub_last_error());
        failures++;
    }
}

static pthread_key_t at_end;

static void *words_of_another_thread(void *session) {
    EXPECT(phub_push(session, 99), INVALID, "key 99 does not exist");
    pthread_setspecific(at_end, session);
    return NULL;
}

static void wrong_calls(const char *hub) {
    PhubSession *session;
    PhubConfig *config = settings(hub, "job", 1);
    FINE(phub_join(&session, config, NULL, NULL));
    phub_config_free(config);
    void *gradient;
    const void *weights;
    size_t bytes;
    FINE(phub_gradient(session, 0, &gradient, &bytes));
    EXPECT(phub_gradient(session, 1, &gradient, &bytes), INVALID, "key 1 does not exist; the job has 1 keys");
    EXPECT(phub_gradient(session, 0, NULL, &bytes), INVALID, "data is null");
    EXPECT(phub_weights(NULL, 0, &weights, &bytes), INVALID, "session is null");
    EXPECT(phub_wait(session, 1), INVALID, "key 1");
    EXPECT(phub_push(session, 0), ORDER, "no weights yet");
    if (bytes != 6 * sizeof(float)) {
        fprintf(stderr, "a gradient of %zu bytes\n", bytes);
        failures++;
    }
    for (int at = 0; at < 6; at++) {
        ((float *)gradient)[at] = 1;
    }
    FINE(phub_broadcast(session));
    /* Each thread has its own error text. */
    EXPECT(phub_set_learning_rate(session, INFINITY), INVALID, "expected a finite number");
    pthread_t thread;
    pthread_key_create(&at_end, at_the_end_of_a_thread);
    pthread_create(&thread, NULL, words_of_another_thread, session);
    pthread_join(thread, NULL);
    if (strstr(phub_last_error(), "finite") == NULL) {
        fprintf(stderr, "another thread's words: %s\n", phub_last_error());
        failures++;
    }
    EXPECT(phub_checkpoint(session), REFUSED, "checkpoint");
    uint32_t round;
    bool ready;
    FINE(phub_next_round(session, &round));
    FINE(phub_push(session, 0));
    FINE(phub_wait(session, 0));
    FINE(phub_is_ready(session, 0, &ready));
    float norm;
    uint32_t of_round;
    uint64_t skipped;
    FINE(phub_norm(session, &norm, &of_round, &skipped));
    if (norm == norm || of_round != 0 || skipped != 0) {
        fprintf(stderr, "norm %f of round %u, %d skipped\n", norm, of_round, (int)skipped);
        failures++;
    }
    FINE(phub_weights(session, 0, &weights, &bytes));
    if (round != 1 || !ready || *(const float *)weights != 0.5f) {
        fprintf(stderr, "round %u, ready %d, weight %f\n", round, ready, *(const float *)weights);
        failures++;
    }
    pid_t child = fork();
    if (child == 0) {
        EXPECT(phub_push(session, 0), OTHER_PROCESS, "belongs to process");
        phub_session_free(session);
        _exit(failures);
    }
    int status;
    waitpid(child, &status, 0);
    failures += WEXITSTATUS(status);
    FINE(phub_push(session, 0)); /* the parent is unharmed */
    FINE(phub_wait_all(session));
    EXPECT(phub_broadcast(session), ORDER, "would change nothing");
    FINE(phub_leave(session));
    EXPECT(phub_push(session, 0), ORDER, "has left");
    phub_session_free(session);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        return 2;
    }
    wrong_settings(argv[1]);
    wrong_pulls(argv[1]);
    pulls(argv[1]);
    wrong_joins(argv[1]);
    wrong_norms(argv[1]);
    waits_for_a_norm(argv[1]);
    wrong_calls(argv[1]);
    return failures != 0;
}
