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
 * Every function that can fail returns a PhubStatus; phub_last_error() has the text. Several threads may use a session.
 * A thread of its own sends and receives while callers compute. In the child of a fork only phub_session_free may be
 * called, and does nothing. */

#ifndef PHUB_H
#define PHUB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The result of a call.
typedef enum {
  // The call succeeded.
  PHUB_STATUS_OK = 0,
  // An argument or a setting is wrong: a null pointer, a key that does not exist, a learning rate that is not a
  // number.
  PHUB_STATUS_INVALID = 1,
  // Calls were made in the wrong order: a key is still in flight, there are no weights yet, or the session has
  // left.
  PHUB_STATUS_ORDER = 2,
  // The hub cannot be reached, or is not a hub of this version.
  PHUB_STATUS_UNREACHABLE = 3,
  // The hub refused the request.
  PHUB_STATUS_REFUSED = 4,
  // Other workers did not join, do not push, or left too early.
  PHUB_STATUS_OTHERS = 5,
  // The job failed, or its hub is lost: the session is over.
  PHUB_STATUS_LOST = 6,
  // The callback that phub_join got ended the wait.
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

// A worker's membership in a job. Several threads may use it.
typedef struct PhubSession PhubSession;

// A callback that returns whether the call that waits must end: any value except 0 ends it.
typedef int (*PhubInterrupted)(void *context);

// The batches of layers in which a session pulls its weights. Times are in seconds; a time that is not known is NaN.
// `predicted` and `measured` go from the time when the first batch can be pulled to the time when the last layer can be
// computed.
typedef struct {
  // The number of batches; 0 if there is no plan. Then nothing is pulled in batches, or there was no profile yet.
  size_t batches;
  // The time of each pull that does not depend on its bytes, by the profile; NaN if batches depend on no profile.
  double start_up;
  // The prediction of the profile; NaN if batches depend on no profile.
  double predicted;
  // The mean of the rounds that used the plan; NaN before the first.
  double measured;
  // The number of rounds that used the plan.
  uint32_t rounds;
  // The number of profiles so far.
  uint32_t profiles;
} PhubPullPlan;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the text of this thread's last call that failed, never null. The text is valid until this thread's next failure.
const char *phub_last_error(void);

// Returns this library's version, such as "0.1.0".
const char *phub_version(void);

// Begins the settings of a session. `hub` is its control port ("host:port", or several with commas), and `rank` this
// worker's number from 0. The optimizer that the hub runs is JSON, such as {"name": "nesterov", "learning_rate": 0.1,
// "momentum": 0.9, "weight_decay": 0.0001}. Its names are "average" (the mean gradient), "sum" (the sum of gradients),
// "sgd", "momentum", "dampened", "nesterov", "adam", "adamw", "amsgrad", "amsgradw", "lion", "lars" and "lamb".
//
// What must hold:
// Texts end with a zero byte, and `config` points to room for a pointer.
PhubStatus phub_config_new(PhubConfig **config,
                           const char *hub,
                           const char *job,
                           uint32_t rank,
                           uint32_t workers,
                           const char *optimizer);

// Adds a key, in the order of the forward pass. Its number is the number of keys that were added before. `lr_mult` and `wd_mult`
// multiply learning rate and weight decay.
//
// What must hold:
// `config` is from phub_config_new and not yet freed, `name` ends with a zero byte, and `shape` points to `dims`
// numbers.
PhubStatus phub_config_add_key(PhubConfig *config,
                               const char *name,
                               const uint64_t *shape,
                               size_t dims,
                               uint32_t dtype,
                               float lr_mult,
                               float wd_mult);

// Adds a layer for the setting "pull": `count` keys, by their numbers, that are needed together. Layers are added in
// the order of the forward pass, and contain each key once. Without layers each key is a layer, in the order in which
// keys were added.
//
// What must hold:
// `config` is from phub_config_new and not yet freed, and `keys` points to `count` numbers.
PhubStatus phub_config_add_layer(PhubConfig *config,
                                 const uint32_t *keys,
                                 size_t count);

// Changes a setting that has a default. Names and values are texts. The values true and false turn a setting on and off,
// and none removes a value.
//
// - "chunk_bytes", "slice_bytes": sizes in bytes.
// - "clip_norm", "clip_norm_last", "skip_spikes": a number, or none. "ema": a decay, or none.
// - "skip_nonfinite", "maximize", "answers_ahead": true or false.
// - "schedule": kvstore, layerwise, sliced or p3.
// - "credit": bytes, auto or none.
// - "consistency": bsp, ssp:S or asp.
// - "on_loss": stop or continue.
// - "weights": shared or private.
// - "compression": a codec with its settings, such as qsgd:8:512, or none. "seed": the seed of its randomness.
// - "transport": shm, verbs or tcp.
// - "checksum": true or false, for everything that crosses by TCP.
// - "tcp_congestion": auto, system, or a name of the kernel's.
// - "nics": a list of NICs. "rails": pairs OWN-NIC=HUB-NIC, with commas between them.
// - "cores": the number of each hub's cores that the job gets.
// - "compare_every": the number of rounds between comparisons of all workers' weights.
// - "mesh": this machine in a mesh of hubs, such as 1/4@10.0.0.1:7077. "token": the hubs' secret, or a token for the job.
// - "trace": the file for this worker's timeline.
// - "join_limit", "hub_wait", "wait_limit": seconds.
// - "dma_buf": DESCRIPTOR or DESCRIPTOR:OFFSET of the memory in which gradients lie and that NICs read, such as a GPU's, for
//   verbs. The descriptor is copied. phub_config_place returns the place of each key.
// - "pull", with the schedule kvstore: the batches of layers in which weights are pulled, or none. The value ibatch overlaps
//   the forward pass best; the session measures that pass from the calls of phub_wait. Other values are greedy, layer and all.
//   With batches, all keys of a round must be pushed before the first phub_wait.
//
// What must hold:
// `config` is from phub_config_new and not yet freed, and texts end with a zero byte.
PhubStatus phub_config_set(PhubConfig *config,
                           const char *name,
                           const char *value);

// Writes the place of a key's gradient in the memory of the setting "dma_buf": its offset and its length in bytes. All keys
// must have been added before. The memory must hold all of the last key, rounded up to 64 bytes.
//
// What must hold:
// `config` is from phub_config_new and not yet freed; `offset` and `bytes` point to room for a result.
PhubStatus phub_config_place(const PhubConfig *config,
                             uint32_t key,
                             size_t *offset,
                             size_t *bytes);

// Frees settings; null is allowed. Sessions that were made from them are not affected.
//
// What must hold:
// `config` is null, or from phub_config_new and not yet freed.
void phub_config_free(PhubConfig *config);

// Joins a job, and waits until all its workers have joined. `interrupted` may be null. Otherwise each call of this session
// that waits calls `interrupted` with `context` ten times a second.
//
// What must hold:
// `config` is from phub_config_new and not yet freed. `session` points to room for a pointer. `interrupted` can be
// called with `context` by any thread that calls the session.
PhubStatus phub_join(PhubSession **session,
                     const PhubConfig *config,
                     PhubInterrupted interrupted,
                     void *context);

// Writes the address of a key's gradient, and its length in bytes. Returns an error with the setting "dma_buf". Write the
// gradient only while the key is not in flight: from its phub_wait to its next phub_push. The memory is the same for the
// whole session.
//
// What must hold:
// `session` is from phub_join and not yet freed; `data` and `bytes` point to room for a result.
PhubStatus phub_gradient(const PhubSession *session,
                         uint32_t key,
                         void **data,
                         size_t *bytes);

// Writes the address of a key's weights (with the optimizer "average": the mean gradient), and their length in bytes.
// Read the weights only while the key is not in flight. The memory is the same for the whole session.
//
// What must hold:
// `session` is from phub_join and not yet freed; `data` and `bytes` point to room for a result.
PhubStatus phub_weights(const PhubSession *session,
                        uint32_t key,
                        const void **data,
                        size_t *bytes);

// Gives every worker the weights that rank 0 has written to its gradients, and waits for them. Every worker calls it
// once, before its first push. It does nothing if the job had weights already when this worker joined.
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

// Waits until a key's answer has arrived.
//
// What must hold:
// `session` is from phub_join and not yet freed.
PhubStatus phub_wait(const PhubSession *session, uint32_t key);

// Waits until every key's answer has arrived. With the setting "pull", the planner does not count this wait as a forward
// pass.
//
// What must hold:
// `session` is from phub_join and not yet freed.
PhubStatus phub_wait_all(const PhubSession *session);

// Writes whether a key's answer has arrived.
//
// What must hold:
// `session` is from phub_join and not yet freed, and `ready` points to room for a result.
PhubStatus phub_is_ready(const PhubSession *session, uint32_t key, bool *ready);

// Changes the learning rate from the next round on, for all workers. Call it between rounds; every worker may call it.
//
// What must hold:
// `session` is from phub_join and not yet freed.
PhubStatus phub_set_learning_rate(const PhubSession *session,
                                  float learning_rate);

// Makes the hub write the job's checkpoint now, and waits until it is on the disk.
//
// What must hold:
// `session` is from phub_join and not yet freed.
PhubStatus phub_checkpoint(const PhubSession *session);

// Writes the first round for which no key has its answer. Round 0 is the broadcast, if there is one.
//
// What must hold:
// `session` is from phub_join and not yet freed, and `round` points to room for a result.
PhubStatus phub_next_round(const PhubSession *session, uint32_t *round);

// Writes the norm of the mean gradient of all keys before clipping, in the last round whose norm is known. Also writes that
// round, and the number of skipped rounds. For a job with "clip_norm", "skip_nonfinite" or "skip_spikes". The norm is NaN
// before the first such round.
//
// What must hold:
// `session` is from phub_join and not yet freed, and `norm`, `round` and `skipped` point to room for a result.
PhubStatus phub_norm(const PhubSession *session,
                     float *norm,
                     uint32_t *round,
                     uint64_t *skipped);

// Waits for all keys that are in flight, and leaves the job. The memory of gradients and weights remains
// until phub_session_free.
//
// What must hold:
// `session` is from phub_join and not yet freed.
PhubStatus phub_leave(const PhubSession *session);

// Frees a session and its memory; null is allowed. If the session has not left, it leaves now if no key is in flight;
// otherwise its worker counts as lost.
//
// What must hold:
// `session` is null, or from phub_join and not yet freed, and no other thread uses it.
void phub_session_free(PhubSession *session);

// Writes the plan of a session that pulls in batches. A plan is made, or made anew, at the first push of a round.
//
// What must hold:
// `session` is from phub_join and not yet freed, and `plan` points to room for a result.
PhubStatus phub_pull_plan(const PhubSession *session,
                          PhubPullPlan *plan);

// Writes the plan as text, to print: the number of layers of each batch, and the times. Works like snprintf: `text` has
// room for `room` bytes, with the zero byte at the end, and a longer text is cut. Without a plan the text is empty.
//
// What must hold:
// `session` is from phub_join and not yet freed, and `text` points to `room` bytes.
PhubStatus phub_pull_plan_text(const PhubSession *session,
                               char *text,
                               size_t room);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PHUB_H */
