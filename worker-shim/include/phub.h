/* A worker's session with a parameter hub, and a reader's subscription to a job's weights, for C. Generated from
 * worker-shim/c/src by cbindgen: edit there, and run "UPDATE_HEADER=1 cargo test -p phub-c".
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
 * A program that does not train reads the weights:
 *
 *     phub_subscribe(&subscription, "127.0.0.1:7077", "demo", "{\"dtype\": \"bf16\"}", NULL, NULL);
 *     while (phub_next_version(subscription, &version) == PHUB_STATUS_OK && version != NULL) {
 *         ... phub_version_find(version, "weight", &tensor) ...
 *         phub_version_free(version);
 *     }
 *     phub_subscription_close(subscription);
 *
 * Every function that can fail returns a PhubStatus; phub_last_error() has the text. Several threads may use a session.
 * A thread of its own sends and receives while callers compute. In the child of a fork only phub_session_free, which
 * does nothing, and phub_subscription_close may be called. */

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
  // The job failed, or its hub is lost: the session is over. For a reader: the hub was away for too long.
  PHUB_STATUS_LOST = 6,
  // The wait was ended by the callback that the caller gave to phub_join or phub_subscribe.
  PHUB_STATUS_INTERRUPTED = 7,
  // Memory, threads or descriptors ran out.
  PHUB_STATUS_EXHAUSTED = 8,
  // A session or a subscription is used in the child of a fork.
  PHUB_STATUS_OTHER_PROCESS = 9,
  // A defect of this library.
  PHUB_STATUS_INTERNAL = 10,
  // There was no version of weights within the timeout.
  PHUB_STATUS_TIMEOUT = 11,
  // A version of weights in a directory cannot be read, or is damaged.
  PHUB_STATUS_DAMAGED = 12,
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

// A reader's subscription to a job's weights. Only one thread at a time may wait for a version.
typedef struct PhubSubscription PhubSubscription;

// All weights of one round. Several threads may read them.
typedef struct PhubVersion PhubVersion;

// A callback that returns whether the call that waits must end: any value except 0 ends the call.
typedef int (*PhubInterrupted)(void *context);

// The batches of layers in which a session pulls its weights. Times are in seconds; a time that is not known is NaN.
// `predicted` and `measured` go from the time when the first batch can be pulled to the time when the last layer can be
// computed. For the batches "ibatch" and "greedy", the session first measures the layers' pulls and forward passes.
typedef struct {
  // The number of batches. 0 if there is no plan: nothing is pulled in batches, or the layers' times are not measured yet.
  size_t batches;
  // The part of a pull's time that does not depend on its bytes, as measured; NaN if the batches depend on no measurement.
  double start_up;
  // The time that the measured times of layers predict; NaN if the batches depend on no measurement.
  double predicted;
  // The measured time, as the mean of the rounds that used the plan; NaN before the first round.
  double measured;
  // The number of rounds that used the plan.
  uint32_t rounds;
  // The number of times that the session has measured its layers.
  uint32_t profiles;
} PhubPullPlan;

// The source of a version.
typedef struct {
  // The round before which the job had these weights.
  uint32_t round;
  // The number of the version in its directory; 0 for a version from a hub.
  uint64_t number;
  // The number of wanted versions that this reader has missed since its last version.
  uint64_t skipped;
  // The number of tensors.
  size_t tensors;
} PhubVersionAbout;

// A tensor of a version. Its memory belongs to the version, and is valid until phub_version_free.
typedef struct {
  // The name, which ends with a zero byte.
  const char *name;
  // The type of the elements.
  PhubDtype dtype;
  // The number of dimensions; 0 for a single element.
  size_t dims;
  // The shape: as many numbers as there are dimensions.
  const uint64_t *shape;
  // The elements, row by row.
  const void *data;
  // The length of the elements in bytes.
  size_t bytes;
} PhubTensor;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the text of this thread's last call that failed, never null. The text is valid until this thread's next failure.
const char *phub_last_error(void);

// Returns this library's version, such as "0.1.0".
const char *phub_version(void);

// Begins the settings of a session. `hub` is the hub's control port ("host:port", or several with commas). `rank` is this
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

// Adds a key, in the order of the forward pass. Its number counts the keys that were added before it. `lr_mult` and `wd_mult`
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
// - "clip_norm", "clip_norm_last", "skip_spikes": a number, or none. "ema": the decay of averages of the weights, or none.
// - "skip_nonfinite", "maximize", "answers_ahead": true or false. With "clip_norm", "skip_nonfinite" and "skip_spikes", all keys
//   of a round must be pushed before the first phub_wait.
// - "schedule": kvstore, layerwise, sliced or p3.
// - "credit": bytes, auto or none.
// - "consistency": bsp, ssp:S or asp.
// - "on_loss": stop or continue.
// - "weights": shared or private.
// - "compression": a codec with its settings, such as qsgd:8:512, or none. "seed": the seed of the codec's random numbers.
// - "transport": shm, verbs or tcp.
// - "checksum": true or false, for everything that is sent over TCP.
// - "tcp_congestion": auto, system, or the name of a congestion control that the kernel has.
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

// Frees settings; null is allowed. Sessions that were made from the settings are not affected.
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

// Writes the address of a key's gradient, and its length in bytes. Fails if the setting "dma_buf" was set, because the memory
// then has no address in this process. Write the gradient only while the key is not in flight: from its phub_wait to its next
// phub_push. The memory is the same for the whole session.
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
// With Slim-DP (the setting "compression" is slim) a worker makes its own steps, so this memory is writable: cast the pointer.
// While the key is not in flight, write the new weights, and add the change of each weight to its gradient. In all other jobs
// only the hub writes the weights, and a write may end the process.
//
// What must hold:
// `session` is from phub_join and not yet freed; `data` and `bytes` point to room for a result.
PhubStatus phub_weights(const PhubSession *session,
                        uint32_t key,
                        const void **data,
                        size_t *bytes);

// Gives every worker the weights that rank 0 has written to its gradients, and waits for them. Every worker calls this
// function once, before its first push. It does nothing if the job had weights already when this worker joined. After a later
// push it returns PHUB_STATUS_ORDER.
//
// What must hold:
// `session` is from phub_join and not yet freed.
PhubStatus phub_broadcast(const PhubSession *session);

// Sends a key's gradient, and returns at once. Until phub_wait, gradient and weights of the key belong to the hub. With
// Slim-DP, push every key once a round; in any other order the push fails with PHUB_STATUS_ORDER, and the session goes on.
//
// What must hold:
// `session` is from phub_join and not yet freed.
PhubStatus phub_push(const PhubSession *session,
                     uint32_t key);

// Waits until the hub's answer for a key has arrived: the key's new weights.
//
// What must hold:
// `session` is from phub_join and not yet freed.
PhubStatus phub_wait(const PhubSession *session, uint32_t key);

// Waits until every key's answer has arrived. With the setting "pull", the session does not count this wait as a forward
// pass.
//
// What must hold:
// `session` is from phub_join and not yet freed.
PhubStatus phub_wait_all(const PhubSession *session);

// Writes whether the hub's answer for a key has arrived.
//
// What must hold:
// `session` is from phub_join and not yet freed, and `ready` points to room for a result.
PhubStatus phub_is_ready(const PhubSession *session, uint32_t key, bool *ready);

// Changes the learning rate from the next round on, for all workers. Call it between rounds; every worker may call it. Fails
// if the job's optimizer is "average" or "sum".
//
// What must hold:
// `session` is from phub_join and not yet freed.
PhubStatus phub_set_learning_rate(const PhubSession *session,
                                  float learning_rate);

// Waits until every key's answer has arrived, makes the hub write the job's checkpoint, and waits until it is on the disk.
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
// round, and the number of skipped rounds. Only jobs with "clip_norm", "skip_nonfinite" or "skip_spikes" have norms. The norm
// is NaN before the first round whose norm is known.
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

// Frees a session and its memory; null is allowed. A session that has not left the job leaves it now. With a key in flight
// it cannot leave, and its worker counts as lost.
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

// Subscribes to the weights of a job, as a reader that no worker waits for. `hub` is the control port of the job's hub, or of all
// its hubs with commas between them. The first phub_next_version sends the first request to the hubs. `settings` may be null, or
// is JSON such as {"dtype": "bf16", "each": 100}:
//
// - "dtype": f32, bf16 or f16, each weight rounded to the nearest number. "ema": true for the averages of the weights.
// - "names": other names for keys, {"the job's key": "the name of the tensor"}. A name may have its own type, {"the job's key":
//   {"name": "the name of the tensor", "dtype": "f32"}}. A key may be cut along its first dimension, {"key": {"split": [{"name":
//   "tensor", "shape": [2, 3]}, ...]}}. Keys may be joined, {"tensor": {"join": ["key", ...], "shape": [4, 3]}}.
// - "every": the shortest time from one version to the next, in seconds; 10 by default. Or "each": only the weights before each
//   round that is a multiple of this number.
// - "timeout": the longest wait for one version after the time of "every", in seconds; there is no limit by default.
// - "hub_wait": the longest wait for a hub that is away, in seconds; 300 by default. "token": a secret, or a token that allows
//   to read the job. "fetch_deltas": true to get only the differences from the last version, which needs memory for two versions.
//
// `interrupted` may be null. Otherwise a call that waits calls `interrupted` with `context` 20 times a second.
//
// What must hold:
// `subscription` points to room for a pointer, and texts end with a zero byte. `interrupted` can be called with `context` by any
// thread that waits for a version.
PhubStatus phub_subscribe(PhubSubscription **subscription,
                          const char *hub,
                          const char *job,
                          const char *settings,
                          PhubInterrupted interrupted,
                          void *context);

// Subscribes to a directory of `phub-server publish`, which may have no version yet. `settings` may be null, or is JSON with
// "every", "each" and "timeout" (see phub_subscribe). With "each", the reader gets versions whose numbers are multiples of
// "each", the oldest first; with 1 every version.
//
// What must hold:
// See phub_subscribe.
PhubStatus phub_subscribe_directory(PhubSubscription **subscription,
                                    const char *directory,
                                    const char *settings,
                                    PhubInterrupted interrupted,
                                    void *context);

// Waits for the next version, and writes its address; free it with phub_version_free. The address is null when the job has ended.
// After an error the caller may call again.
//
// What must hold:
// `subscription` is from phub_subscribe or phub_subscribe_directory and not yet closed, and `version` points to room for a pointer.
PhubStatus phub_next_version(const PhubSubscription *subscription,
                             PhubVersion **version);

// Writes the source of a version.
//
// What must hold:
// `version` is from phub_next_version and not yet freed, and `about` points to room for a result.
PhubStatus phub_version_about(const PhubVersion *version, PhubVersionAbout *about);

// Writes a tensor of a version. Tensors have numbers from 0, in the order of their names.
//
// What must hold:
// `version` is from phub_next_version and not yet freed, and `tensor` points to room for a result.
PhubStatus phub_version_tensor(const PhubVersion *version, size_t number, PhubTensor *tensor);

// Writes the tensor of a version that has this name.
//
// What must hold:
// `version` is from phub_next_version and not yet freed, `name` ends with a zero byte, and `tensor` points to room for a result.
PhubStatus phub_version_find(const PhubVersion *version,
                             const char *name,
                             PhubTensor *tensor);

// Frees a version and the memory of its tensors; null is allowed. A closed subscription does not affect its versions.
//
// What must hold:
// `version` is null, or from phub_next_version and not yet freed, and no thread uses its tensors.
void phub_version_free(PhubVersion *version);

// Ends a subscription and frees it; null is allowed.
//
// What must hold:
// `subscription` is null, or from phub_subscribe or phub_subscribe_directory and not yet closed, and no other thread uses it.
void phub_subscription_close(PhubSubscription *subscription);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PHUB_H */
