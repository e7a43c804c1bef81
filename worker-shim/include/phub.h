/* A worker's session with a parameter hub, for C. Generated from worker-shim/c/src by cbindgen: edit there, and
 * run "UPDATE_HEADER=1 cargo test -p phub-c".
 *
 *     PhubConfig *config;
 *     PhubSession *session;
 *     phub_config_new(&config, "127.0.0.1:7077", "demo", rank, workers,
 *                     "{\"name\": \"sgd\", \"learning_rate\": 0.1}");
 *     phub_config_add_key(config, "weight", (uint64_t[]){10, 64}, 2, PHUB_DTYPE_F32, 1, 1);
 *     phub_join(&session, config, NULL, NULL);
 *     ... write phub_gradient's memory, phub_push, phub_wait, read phub_weights' memory ...
 *     phub_leave(session);
 *     phub_session_free(session);
 *     phub_config_free(config);
 *
 * Every function that can fail returns a PhubStatus; phub_last_error() has the words. A session may be used by
 * several threads. Its sends and receives go on in a thread of its own while callers compute. Nothing here may be
 * used in the child of a fork but phub_session_free, which does nothing there. */

#ifndef PHUB_H
#define PHUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// How a call ended.
typedef enum {
  // Well.
  PHUB_STATUS_OK = 0,
  // An argument or a setting is wrong, such as a null pointer, a key that does not exist, or a learning rate that
  // is no number.
  PHUB_STATUS_INVALID = 1,
  // Calls came in the wrong order: a key is still under way, there are no weights yet, or the session has left.
  PHUB_STATUS_ORDER = 2,
  // The hub cannot be reached, or is no hub of this version.
  PHUB_STATUS_UNREACHABLE = 3,
  // The hub said no.
  PHUB_STATUS_REFUSED = 4,
  // Other workers did not come, do not push, or left too early.
  PHUB_STATUS_OTHERS = 5,
  // The job failed, or its hub is lost: the session is over.
  PHUB_STATUS_LOST = 6,
  // The function that phub_join was given said to wait no more.
  PHUB_STATUS_INTERRUPTED = 7,
  // Memory, threads or descriptors ran out.
  PHUB_STATUS_EXHAUSTED = 8,
  // A session is used in the child of a fork.
  PHUB_STATUS_OTHER_PROCESS = 9,
  // A defect of this library.
  PHUB_STATUS_INTERNAL = 10,
} PhubStatus;

// Type of a key's elements, little endian.
typedef enum {
  // IEEE 754 single precision.
  PHUB_DTYPE_F32 = 0,
  // IEEE 754 half precision.
  PHUB_DTYPE_F16 = 1,
  // bfloat16.
  PHUB_DTYPE_BF16 = 2,
} PhubDtype;

// Settings of a session.
typedef struct PhubConfig PhubConfig;

// A worker's membership in a job. May be used by several threads.
typedef struct PhubSession PhubSession;

// Says whether to wait no more: anything but 0.
typedef int (*PhubInterrupted)(void *context);

// In which batches of layers a session pulls its weights. Times are in seconds, from when the first batch can be pulled
// to when the last layer can be computed, and not a number where there is none.
typedef struct {
  // How many batches there are; 0: there is no plan, because nothing is pulled in batches, or not enough is seen yet.
  size_t batches;
  // What each pull takes beside its bytes, by the profile; no number where batches depend on none.
  double start_up;
  // By the profile; no number where batches depend on none.
  double predicted;
  // The mean of the rounds since; no number before the first.
  double measured;
  // Rounds since.
  uint32_t rounds;
  // How many profiles there were.
  uint32_t profiles;
} PhubPullPlan;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The words of this thread's last call that failed, never null. They stay until this thread's next failure.
const char *phub_last_error(void);

// This library's version, such as "0.1.0".
const char *phub_version(void);

// Begins the settings of a session: the hub's control port ("host:port", or several with commas), the job's name, this
// worker's number from 0, how many workers there are, and what the hub runs, as JSON, such as
// {"name": "nesterov", "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.0001}; "average" (the mean gradient
// comes back), "sgd", "momentum", "nesterov", "adam" and "adamw" are there.
//
// What must hold:
// Texts end with a zero byte, and `config` leads to room for a pointer.
PhubStatus phub_config_new(PhubConfig **config,
                           const char *hub,
                           const char *job,
                           uint32_t rank,
                           uint32_t workers,
                           const char *optimizer);

// Adds a key, in the order of the forward pass; its number is how many were added before. `lr_mult` and `wd_mult`
// multiply learning rate and weight decay.
//
// What must hold:
// `config` is from phub_config_new and not yet freed, `name` ends with a zero byte, and `shape` leads to `dims`
// numbers.
PhubStatus phub_config_add_key(PhubConfig *config,
                               const char *name,
                               const uint64_t *shape,
                               size_t dims,
                               uint32_t dtype,
                               float lr_mult,
                               float wd_mult);

// Adds a layer to pull by: `count` keys, by their numbers, that are needed together. Layers are added in the order of
// the forward pass, and have each key once. For the setting "pull"; without layers each key is one, in the order in
// which keys were added.
//
// What must hold:
// `config` is from phub_config_new and not yet freed, and `keys` leads to `count` numbers.
PhubStatus phub_config_add_layer(PhubConfig *config,
                                 const uint32_t *keys,
                                 size_t count);

// Changes a setting that has a default: "chunk_bytes", "schedule" (kvstore, layerwise, sliced, p3), "slice_bytes",
// "credit" (none, auto, or bytes), "consistency" (bsp, ssp:S, asp), "on_loss" (stop, continue), "weights" (shared,
// private), "compression" (none, or a codec and its settings, as qsgd:8:512), "seed" of its randomness, "transport" (shm,
// verbs, tcp), "nics", "cores", "join_limit" and "wait_limit" (both in seconds), and with the schedule kvstore "pull":
// none, or in which batches of layers weights are pulled: ibatch (those that overlap the forward pass best: it is seen
// by when phub_wait is called for which key), greedy, layer, all. All keys of a round are then pushed before one is
// waited for.
//
// What must hold:
// `config` is from phub_config_new and not yet freed, and texts end with a zero byte.
PhubStatus phub_config_set(PhubConfig *config,
                           const char *name,
                           const char *value);

// Frees settings; null is nothing. Sessions that were made from them stay.
//
// What must hold:
// `config` is null, or from phub_config_new and not yet freed.
void phub_config_free(PhubConfig *config);

// Joins a job, and waits until all its workers are there. `interrupted` may be null; else whoever waits, here and in
// the session's other calls, asks it with `context` ten times a second.
//
// What must hold:
// `config` is from phub_config_new and not yet freed, `session` leads to room for a pointer, and `interrupted` can be
// called with `context` by any thread that calls the session.
PhubStatus phub_join(PhubSession **session,
                     const PhubConfig *config,
                     PhubInterrupted interrupted,
                     void *context);

// Where a key's gradient is, and its length in bytes. Write it only while the key is not under way: from its
// phub_wait to its next phub_push. The same memory for the whole session.
//
// What must hold:
// `session` is from phub_join and not yet freed; `data` and `bytes` lead to room for a result.
PhubStatus phub_gradient(const PhubSession *session, uint32_t key, void **data, size_t *bytes);

// Where a key's weights are (with the optimizer "average": the mean gradient), and their length in bytes. Read them
// only while the key is not under way. The same memory for the whole session.
//
// What must hold:
// `session` is from phub_join and not yet freed; `data` and `bytes` lead to room for a result.
PhubStatus phub_weights(const PhubSession *session,
                        uint32_t key,
                        const void **data,
                        size_t *bytes);

// Gives every worker the weights that rank 0 has written to its gradients, and waits for them. Every worker calls it
// once, before its first push. Of a worker that came to a job that has weights already, it does nothing.
//
// What must hold:
// `session` is from phub_join and not yet freed.
PhubStatus phub_broadcast(const PhubSession *session);

// Sends a key's gradient, and returns at once. Until phub_wait, gradient and weights of the key belong to the hub.
//
// What must hold:
// `session` is from phub_join and not yet freed.
PhubStatus phub_push(const PhubSession *session,
                     uint32_t key);

// Waits until a key's answer is there.
//
// What must hold:
// `session` is from phub_join and not yet freed.
PhubStatus phub_wait(const PhubSession *session, uint32_t key);

// Waits until every key's answer is there. To what plans the pulls ("pull") it is no forward pass.
//
// What must hold:
// `session` is from phub_join and not yet freed.
PhubStatus phub_wait_all(const PhubSession *session);

// Whether a key's answer is there.
//
// What must hold:
// `session` is from phub_join and not yet freed, and `ready` leads to room for a result.
PhubStatus phub_is_ready(const PhubSession *session, uint32_t key, bool *ready);

// Changes the learning rate from the next round on, for all workers. Between rounds; every worker may call it.
//
// What must hold:
// `session` is from phub_join and not yet freed.
PhubStatus phub_set_learning_rate(const PhubSession *session,
                                  float learning_rate);

// Has the hub write the job's checkpoint now, and waits until it is on the disk.
//
// What must hold:
// `session` is from phub_join and not yet freed.
PhubStatus phub_checkpoint(const PhubSession *session);

// The first round of which no key has its answer. Round 0 is the broadcast, where there is one.
//
// What must hold:
// `session` is from phub_join and not yet freed, and `round` leads to room for a result.
PhubStatus phub_next_round(const PhubSession *session, uint32_t *round);

// Waits for whatever is under way, and leaves the job. The memory of gradients and weights stays until
// phub_session_free.
//
// What must hold:
// `session` is from phub_join and not yet freed.
PhubStatus phub_leave(const PhubSession *session);

// Frees a session; null is nothing. One that has not left leaves now when nothing is under way, and else counts as
// lost. Its memory is gone with it.
//
// What must hold:
// `session` is null, or from phub_join and not yet freed, and no other thread uses it.
void phub_session_free(PhubSession *session);

// The plan of a session that pulls in batches. It is made, or made anew, with the first push of a round.
//
// What must hold:
// `session` is from phub_join and not yet freed, and `plan` leads to room for a result.
PhubStatus phub_pull_plan(const PhubSession *session, PhubPullPlan *plan);

// The plan in words, to print: how many layers each batch has, and the times. Like snprintf: `text` has room for `room`
// bytes, with the zero byte at its end, and what is too long is cut. No plan is an empty text.
//
// What must hold:
// `session` is from phub_join and not yet freed, and `text` leads to `room` bytes.
PhubStatus phub_pull_plan_text(const PhubSession *session,
                               char *text,
                               size_t room);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PHUB_H */
