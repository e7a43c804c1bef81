/* Reads the weights of a job that this program trains, and every misuse of a subscription.
 *
 *     reader HOST:PORT DIRECTORY
 *
 * The hub's step is one rounded product and one rounded difference, so the program computes the bits of each round. The
 * directory has the versions 1 to 3: the tensor "w" with two elements, each equal to the version's number. */
#include <phub.h>
#include <pthread.h>
#include <stdatomic.h>
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

static void check(int is_true, int line) {
    if (!is_true) {
        fprintf(stderr, "line %d: is not true\n", line);
        failures++;
    }
}

#define EXPECT(call, status, words) expect(call, PHUB_STATUS_##status, words, __LINE__)
#define FINE(call) expect(call, PHUB_STATUS_OK, "", __LINE__)
#define CHECK(what) check(what, __LINE__)

enum { KEYS = 2 };
static const char *NAMES[KEYS] = {"a", "b"};
static const uint64_t SHAPES[KEYS][2] = {{2, 3}, {500, 1}};
static const float RATE = 0.05f;

static float gradient(uint32_t round, size_t element) {
    return 0.3f * (float)(round % 7 + 1) + 0.1f * (float)element;
}

static void make_round(const PhubSession *session) {
    uint32_t round;
    FINE(phub_next_round(session, &round));
    for (uint32_t key = 0; key < KEYS; key++) {
        void *data;
        size_t bytes;
        FINE(phub_gradient(session, key, &data, &bytes));
        for (size_t at = 0; at < bytes / sizeof(float); at++) {
            ((float *)data)[at] = gradient(round, at);
        }
        FINE(phub_push(session, key));
    }
    FINE(phub_wait_all(session));
}

static PhubSession *joined(const char *hub) {
    PhubConfig *config;
    PhubSession *session;
    FINE(phub_config_new(&config, hub, "c", 0, 1, "{\"name\": \"sgd\", \"learning_rate\": 0.05}"));
    for (int key = 0; key < KEYS; key++) {
        FINE(phub_config_add_key(config, NAMES[key], SHAPES[key], 2, PHUB_DTYPE_F32, 1, 1));
    }
    FINE(phub_join(&session, config, NULL, NULL));
    phub_config_free(config);
    FINE(phub_broadcast(session)); /* zeros */
    make_round(session);
    return session;
}

static atomic_int ends;

static void *train(void *session) {
    while (!ends) {
        make_round(session);
    }
    return NULL;
}

/* Compares all bits of a version with those of its round. Returns the round. */
static uint32_t check_version(const PhubVersion *version, const char *const *names, int is_bf16, int line) {
    PhubVersionAbout about = {0};
    FINE(phub_version_about(version, &about));
    check(about.tensors == KEYS && about.number == 0, line);
    for (size_t key = 0; key < KEYS; key++) {
        PhubTensor tensor, same;
        FINE(phub_version_tensor(version, key, &tensor));
        FINE(phub_version_find(version, names[key], &same));
        check(same.data == tensor.data && strcmp(tensor.name, names[key]) == 0, line);
        check(tensor.dtype == (is_bf16 ? PHUB_DTYPE_BF16 : PHUB_DTYPE_F32) && tensor.dims == 2, line);
        check(memcmp(tensor.shape, SHAPES[key], sizeof SHAPES[key]) == 0, line);
        size_t elements = (size_t)(SHAPES[key][0] * SHAPES[key][1]);
        check(tensor.bytes == elements * (is_bf16 ? 2 : 4), line);
        for (size_t at = 0; at < elements; at++) {
            float weight = 0;
            for (uint32_t round = 1; round < about.round; round++) {
                float change = RATE * gradient(round, at);
                weight = weight - change;
            }
            uint32_t bits, seen = 0;
            memcpy(&bits, &weight, sizeof bits);
            if (is_bf16) {
                bits = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
            }
            memcpy(&seen, (const char *)tensor.data + at * (is_bf16 ? 2 : 4), is_bf16 ? 2 : 4);
            if (seen != bits) {
                fprintf(stderr, "line %d: element %zu of %s before round %u: %x, expected %x\n", line, at, names[key],
                        about.round, seen, bits);
                failures++;
                return about.round;
            }
        }
    }
    return about.round;
}

static PhubSubscription *subscribed(const char *hub, const char *settings) {
    PhubSubscription *subscription = NULL;
    FINE(phub_subscribe(&subscription, hub, "c", settings, NULL, NULL));
    return subscription;
}

static PhubVersion *next(PhubSubscription *subscription) {
    PhubVersion *version = NULL;
    FINE(phub_next_version(subscription, &version));
    return version;
}

/* Reads while the job trains, in two types, under other names, and each tenth round. */
static void reads(const char *hub, PhubSession *session) {
    pthread_t trainer;
    pthread_create(&trainer, NULL, train, session);
    PhubSubscription *newest = subscribed(hub, "{\"every\": 0}");
    uint32_t last = 0;
    for (int count = 0; count < 5; count++) {
        PhubVersion *version = next(newest);
        uint32_t round = check_version(version, NAMES, 0, __LINE__);
        CHECK(round > last);
        last = round;
        phub_version_free(version);
    }
    const char *const renamed[] = {"a", "model.b"};
    PhubSubscription *each = subscribed(hub, "{\"each\": 10, \"dtype\": \"bf16\", \"names\": {\"b\": \"model.b\"}}");
    PhubVersion *kept = next(each);
    phub_subscription_close(each);
    CHECK(check_version(kept, renamed, 1, __LINE__) % 10 == 0); /* a version outlives its subscription */
    phub_version_free(kept);
    ends = 1;
    pthread_join(trainer, NULL);
    PhubVersion *version = next(newest);
    uint32_t round;
    FINE(phub_next_round(session, &round));
    CHECK(check_version(version, NAMES, 0, __LINE__) == round);
    phub_version_free(version);
    FINE(phub_leave(session));
    CHECK(next(newest) == NULL); /* the job has ended */
    phub_subscription_close(newest);
}

static int interrupted(void *count) {
    return ++*(int *)count == 3;
}

static void *waits(void *subscription) {
    PhubVersion *version;
    EXPECT(phub_next_version(subscription, &version), ORDER, "another thread waits for the next version");
    return NULL;
}

static int interrupted_beside_another(void *subscription) {
    pthread_t other;
    pthread_create(&other, NULL, waits, *(PhubSubscription **)subscription);
    pthread_join(other, NULL);
    return 1;
}

static void wrong_settings(const char *hub, const char *directory) {
    PhubSubscription *s;
    EXPECT(phub_subscribe(NULL, hub, "c", NULL, NULL, NULL), INVALID, "subscription is null");
    EXPECT(phub_subscribe(&s, NULL, "c", NULL, NULL, NULL), INVALID, "hub is null");
    EXPECT(phub_subscribe(&s, hub, NULL, NULL, NULL, NULL), INVALID, "job is null");
    EXPECT(phub_subscribe(&s, hub, "a/b", NULL, NULL, NULL), INVALID, "a/b");
    EXPECT(phub_subscribe(&s, "nowhere", "c", NULL, NULL, NULL), INVALID, "nowhere");
    EXPECT(phub_subscribe(&s, hub, "c", "{", NULL, NULL), INVALID, "settings: EOF");
    EXPECT(phub_subscribe(&s, hub, "c", "\xff", NULL, NULL), INVALID, "settings is no UTF-8");
    EXPECT(phub_subscribe(&s, hub, "c", "{\"ever\": 1}", NULL, NULL), INVALID, "unknown field `ever`");
    EXPECT(phub_subscribe(&s, hub, "c", "{\"dtype\": \"int8\"}", NULL, NULL), INVALID, "expected f32, bf16 or f16");
    EXPECT(phub_subscribe(&s, hub, "c", "{\"names\": {\"a\": {\"name\": \"x\", \"dtype\": \"int8\"}}}", NULL, NULL), INVALID,
           "key \"a\", as tensor \"x\": dtype \"int8\"");
    EXPECT(phub_subscribe(&s, hub, "c", "{\"each\": 0}", NULL, NULL), INVALID, "nonzero");
    EXPECT(phub_subscribe(&s, hub, "c", "[]", NULL, NULL), INVALID, "expected a JSON object");
    EXPECT(phub_subscribe(&s, hub, "c", "{\"each\": 2, \"every\": 1}", NULL, NULL), INVALID, "both are given");
    EXPECT(phub_subscribe(&s, hub, "c", "{\"timeout\": -1}", NULL, NULL), INVALID, "timeout is -1.0, expected seconds");
    EXPECT(phub_subscribe(&s, hub, "c", "{\"timeout\": 1e300}", NULL, NULL), INVALID, "timeout is 1e300, expected seconds from 0 to");
    EXPECT(phub_subscribe(&s, hub, "c", "{\"token\": \"x y\"}", NULL, NULL), INVALID, "the setting `token`");
    EXPECT(phub_subscribe_directory(NULL, directory, NULL, NULL, NULL), INVALID, "subscription is null");
    EXPECT(phub_subscribe_directory(&s, NULL, NULL, NULL, NULL), INVALID, "directory is null");
    EXPECT(phub_subscribe_directory(&s, directory, "{\"ema\": true}", NULL, NULL), INVALID, "that its publisher chose");
    phub_subscription_close(NULL);
    phub_version_free(NULL);
}

static void wrong_calls(const char *hub) {
    PhubVersion *version;
    PhubVersionAbout about;
    PhubTensor tensor;
    PhubSubscription *s = subscribed(hub, "{\"every\": 0, \"timeout\": 0.1}");
    EXPECT(phub_next_version(NULL, &version), INVALID, "subscription is null");
    EXPECT(phub_next_version(s, NULL), INVALID, "version is null");
    version = next(s);
    EXPECT(phub_version_about(NULL, &about), INVALID, "version is null");
    EXPECT(phub_version_about(version, NULL), INVALID, "about is null");
    EXPECT(phub_version_tensor(NULL, 0, &tensor), INVALID, "version is null");
    EXPECT(phub_version_tensor(version, 0, NULL), INVALID, "tensor is null");
    EXPECT(phub_version_tensor(version, 2, &tensor), INVALID, "tensor 2 does not exist; the version has 2");
    EXPECT(phub_version_find(NULL, "a", &tensor), INVALID, "version is null");
    EXPECT(phub_version_find(version, NULL, &tensor), INVALID, "name is null");
    EXPECT(phub_version_find(version, "c", &tensor), INVALID, "the version has no tensor \"c\"");
    phub_version_free(version);
    EXPECT(phub_next_version(s, &version), TIMEOUT, "no version within the timeout: the job is still before round 2");
    pid_t child = fork();
    if (child == 0) {
        failures = 0;
        EXPECT(phub_next_version(s, &version), OTHER_PROCESS, "forked");
        phub_subscription_close(s);
        _exit(failures != 0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    phub_subscription_close(s);

    int count = 0;
    FINE(phub_subscribe(&s, "127.0.0.1:1", "c", NULL, interrupted, &count)); /* nobody listens there */
    EXPECT(phub_next_version(s, &version), INTERRUPTED, "interrupted");
    CHECK(count == 3);
    phub_subscription_close(s);
    FINE(phub_subscribe(&s, hub, "none", NULL, interrupted_beside_another, &s));
    EXPECT(phub_next_version(s, &version), INTERRUPTED, "interrupted");
    phub_subscription_close(s);
    FINE(phub_subscribe(&s, "127.0.0.1:1", "c", "{\"hub_wait\": 0}", NULL, NULL));
    EXPECT(phub_next_version(s, &version), LOST, "127.0.0.1:1");
    phub_subscription_close(s);
    s = subscribed(hub, "{\"ema\": true}");
    EXPECT(phub_next_version(s, &version), REFUSED, "keeps no averages");
    phub_subscription_close(s);
    s = subscribed(hub, "{\"names\": {\"none\": \"x\"}}");
    EXPECT(phub_next_version(s, &version), INVALID, "no key \"none\", which the mapping of names calls \"x\"");
    phub_subscription_close(s);
    s = subscribed(hub, "{\"names\": {\"b\": {\"split\": [{\"name\": \"c\", \"shape\": [200, 1]}]}}}");
    EXPECT(phub_next_version(s, &version), INVALID, "tensor \"c\" [200, 1]: the parts end here, and 300 rows are in no part");
    phub_subscription_close(s);
}

/* A key that is cut has the bytes of the whole key, which no round changes meanwhile. */
static void cuts(const char *hub) {
    PhubTensor whole, first, second;
    PhubSubscription *s = subscribed(hub, NULL);
    PhubVersion *version = next(s);
    FINE(phub_version_find(version, "b", &whole));
    PhubSubscription *cut = subscribed(hub, "{\"names\": {\"b\": {\"split\": [{\"name\": \"c\", \"shape\": [200, 1]}, "
                                            "{\"name\": \"d\", \"shape\": [300, 1]}]}}}");
    PhubVersion *parts = next(cut);
    FINE(phub_version_find(parts, "c", &first));
    FINE(phub_version_find(parts, "d", &second));
    CHECK(first.bytes == 800 && second.bytes == 1200 && first.shape[0] == 200 && second.shape[0] == 300);
    CHECK(memcmp(first.data, whole.data, 800) == 0 && memcmp(second.data, (const char *)whole.data + 800, 1200) == 0);
    phub_version_free(version);
    phub_version_free(parts);
    phub_subscription_close(s);
    phub_subscription_close(cut);
}

static void follows(const char *directory) {
    PhubSubscription *s = NULL;
    FINE(phub_subscribe_directory(&s, directory, "{\"each\": 1, \"timeout\": 0.1}", NULL, NULL));
    PhubVersion *version;
    for (uint64_t number = 1; number <= 3; number++) {
        PhubVersionAbout about;
        PhubTensor tensor;
        version = next(s);
        FINE(phub_version_about(version, &about));
        CHECK(about.number == number && about.round == 10 * number && about.skipped == 0 && about.tensors == 1);
        FINE(phub_version_find(version, "w", &tensor));
        const float *weights = tensor.data;
        CHECK(tensor.bytes == 8 && weights[0] == (float)number && weights[1] == (float)number);
        phub_version_free(version);
    }
    EXPECT(phub_next_version(s, &version), TIMEOUT, "none is newer than 000003");
    phub_subscription_close(s);
    char damaged[4096];
    snprintf(damaged, sizeof damaged, "%s/weight_v000003/model.safetensors.index.json", directory);
    FILE *index = fopen(damaged, "w");
    fputs("{}", index);
    fclose(index);
    FINE(phub_subscribe_directory(&s, directory, NULL, NULL, NULL));
    EXPECT(phub_next_version(s, &version), DAMAGED, "the index of a version");
    phub_subscription_close(s);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        return 2;
    }
    PhubSession *session = joined(argv[1]);
    wrong_settings(argv[1], argv[2]);
    wrong_calls(argv[1]);
    cuts(argv[1]);
    reads(argv[1], session);
    phub_session_free(session);
    follows(argv[2]);
    return failures != 0;
}
