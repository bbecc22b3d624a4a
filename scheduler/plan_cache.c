/*
 * Plans under the topology of their graphs, shared by everybody, bounded by bytes.
 *
 * The key is the canonical form of the graph followed by a suffix with all else that a plan depends
 * on: the epoch first, then options, placement and pins. A hit is confirmed by comparing the bytes.
 * Entries are chained in a table by the hash and in a list by last use; the least recently used go
 * when the bytes exceed the bound, and leave their hash in a ring, so that a later miss can say
 * that the plan was known.
 *
 * The reason of a miss is looked for among the entries most recently used: it informs people, and
 * is not worth a walk over everything.
 */
#include "scheduler/exec.h"

#include <stdlib.h>
#include <string.h>

#include "core/list.h"

#define FORGOTTEN_COUNT 4096 /* evicted keys remembered */
#define NEIGHBOUR_COUNT 64   /* entries compared for the reason of a miss */
#define FIRST_BUCKET_COUNT 256

struct entry {
        struct hr_list by_use;
        struct entry *next_in_bucket;
        struct hr_topology topology;
        size_t suffix_bytes;
        struct hr_plan *plan;
        uint64_t bytes;
};

struct hr_plan_cache {
        struct entry **buckets;
        uint32_t bucket_mask;
        struct hr_list by_use; /* least recently used first */
        uint64_t forgotten[FORGOTTEN_COUNT];
        uint32_t forgotten_next;
        struct hr_plan_cache_stats stats;
};

const char *hr_plan_origin_name(hr_plan_origin origin) {
        static const char *const names[HR_PLAN_ORIGIN_COUNT] = {
                [HR_PLAN_HIT] = "hit",
                [HR_PLAN_MISS_NEW] = "new",
                [HR_PLAN_MISS_SHAPES] = "shapes",
                [HR_PLAN_MISS_PLACEMENT] = "placement",
                [HR_PLAN_MISS_EPOCH] = "epoch",
                [HR_PLAN_MISS_EVICTED] = "evicted",
        };

        HR_ASSERT(origin < HR_PLAN_ORIGIN_COUNT);
        return names[origin];
}

hr_status hr_plan_cache_new(uint64_t bytes_max, struct hr_diag *diag,
                            struct hr_plan_cache **ret_cache) {
        struct hr_plan_cache *cache = calloc(1, sizeof *cache);

        if (cache)
                cache->buckets = calloc(FIRST_BUCKET_COUNT, sizeof *cache->buckets);
        if (!cache || !cache->buckets) {
                free(cache);
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for the plan cache");
        }
        cache->bucket_mask = FIRST_BUCKET_COUNT - 1;
        cache->stats.bytes_max = bytes_max;
        hr_list_init(&cache->by_use);
        *ret_cache = cache;
        return HR_OK;
}

static void entry_free(struct entry *entry) {
        hr_topology_deinit(&entry->topology);
        hr_plan_unref(entry->plan);
        free(entry);
}

struct hr_plan_cache *hr_plan_cache_free(struct hr_plan_cache *cache) {
        struct hr_list *link;

        if (!cache)
                return NULL;
        while ((link = hr_list_pop(&cache->by_use)) != NULL)
                entry_free(HR_CONTAINER_OF(link, struct entry, by_use));
        free(cache->buckets);
        free(cache);
        return NULL;
}

struct hr_plan_cache_stats hr_plan_cache_stats(const struct hr_plan_cache *cache) {
        return cache->stats;
}

/* ---- The suffix -------------------------------------------------------------------------------
 */

struct suffix_head {
        uint64_t epoch;
        uint32_t rules, n_copies, op_offload, strict;
        uint32_t device_count, buffer_count, has_pins, optimize, tap_count, copies_most;
        uint32_t serial_uploads, unused; /* zero */
        uint64_t expert_bytes;
};

/* Epoch, options, buffers (kind and usage), buffer of each leaf, pins, taps. */
static hr_status suffix_make(const struct hr_plan_request *request, struct hr_plan_facts *facts,
                             struct hr_diag *diag, uint8_t **ret_bytes, size_t *ret_size) {
        const struct hr_plan_input *in = &facts->input;
        const struct hr_graph *graph = request->graph;
        size_t buffers = in->buffer_count * 2 * sizeof(uint32_t);
        size_t leaves = graph->leaf_count * sizeof(uint32_t);
        size_t pins = request->pins ? hr_graph_tensor_count(graph) * sizeof(int32_t) : 0;
        size_t taps = request->tap_count * sizeof(uint32_t);
        size_t size = sizeof(struct suffix_head) + buffers + leaves + pins + taps;
        struct suffix_head head = {
                .epoch = hr_fleet_epoch(request->fleet),
                .rules = (uint32_t) request->options.rules,
                .n_copies = request->options.n_copies,
                .copies_most = request->options.copies_most,
                .op_offload = request->options.op_offload,
                .strict = request->options.strict,
                .optimize = request->options.optimize,
                .serial_uploads = request->options.serial_uploads,
                .tap_count = request->tap_count,
                .expert_bytes = request->options.expert_bytes,
                .device_count = in->device_count,
                .buffer_count = in->buffer_count,
                .has_pins = request->pins != NULL,
        };
        uint8_t *bytes = hr_arena_alloc(&facts->arena, size, 16), *cursor = bytes;

        if (!bytes)
                return hr_fail(diag, HR_E_EXHAUSTED, "memory for the key of a plan");
        memcpy(cursor, &head, sizeof head);
        cursor += sizeof head;
        for (uint32_t b = 0; b < in->buffer_count; ++b) {
                uint32_t words[2] = {in->buffers[b].kind, (uint32_t) in->buffers[b].usage};

                memcpy(cursor, words, sizeof words);
                cursor += sizeof words;
        }
        if (leaves)
                memcpy(cursor, in->tensor_buffer, leaves);
        if (pins)
                memcpy(cursor + leaves, request->pins, pins);
        if (taps)
                memcpy(cursor + leaves + pins, request->taps, taps);
        *ret_bytes = bytes;
        *ret_size = size;
        return HR_OK;
}

/* ---- Looking up -------------------------------------------------------------------------------
 */

static struct entry *find(const struct hr_plan_cache *cache, const struct hr_graph *graph,
                          const uint8_t *suffix, size_t suffix_bytes) {
        struct hr_topology_key key = hr_topology_key_of(graph, suffix, suffix_bytes);
        struct entry *entry = cache->buckets[key.low & cache->bucket_mask];

        while (entry &&
               (entry->topology.key.low != key.low || entry->topology.key.high != key.high ||
                !hr_topology_matches(&entry->topology, graph, suffix, suffix_bytes)))
                entry = entry->next_in_bucket;
        return entry;
}

static const uint8_t *entry_suffix(const struct entry *entry) {
        return entry->topology.bytes + entry->topology.size - entry->suffix_bytes;
}

/* Nothing but the epoch differs between the suffixes. */
static bool same_but_epoch(const struct entry *entry, const uint8_t *suffix, size_t suffix_bytes) {
        return entry->suffix_bytes == suffix_bytes &&
               memcmp(entry_suffix(entry) + sizeof(uint64_t), suffix + sizeof(uint64_t),
                      suffix_bytes - sizeof(uint64_t)) == 0;
}

static bool was_evicted(const struct hr_plan_cache *cache, const struct hr_topology *topology) {
        for (uint32_t i = 0; i < FORGOTTEN_COUNT; ++i) {
                if (cache->forgotten[i] == topology->key.low && topology->key.low != 0)
                        return true;
        }
        return false;
}

static hr_plan_origin miss_reason(const struct hr_plan_cache *cache,
                                  const struct hr_topology *topology, const uint8_t *suffix,
                                  size_t suffix_bytes, uint32_t *ret_first_different) {
        hr_plan_origin reason = HR_PLAN_MISS_NEW;
        uint32_t seen = 0;

        *ret_first_different = HR_TENSOR_NONE;
        if (was_evicted(cache, topology))
                return HR_PLAN_MISS_EVICTED;
        for (const struct hr_list *link = cache->by_use.previous;
             link != &cache->by_use && seen < NEIGHBOUR_COUNT; link = link->previous, ++seen) {
                const struct entry *entry = HR_CONTAINER_OF(link, struct entry, by_use);
                uint32_t first;

                if (!hr_topology_same_ops(&entry->topology, topology, &first))
                        continue;
                if (first == HR_TENSOR_NONE) {
                        if (same_but_epoch(entry, suffix, suffix_bytes))
                                return HR_PLAN_MISS_EPOCH;
                        reason = HR_PLAN_MISS_PLACEMENT;
                } else if (reason == HR_PLAN_MISS_NEW) {
                        reason = HR_PLAN_MISS_SHAPES;
                        *ret_first_different = first;
                }
        }
        if (reason == HR_PLAN_MISS_PLACEMENT)
                *ret_first_different = HR_TENSOR_NONE;
        return reason;
}

/* ---- Keeping ----------------------------------------------------------------------------------
 */

static void unlink_entry(struct hr_plan_cache *cache, struct entry *entry) {
        struct entry **at = &cache->buckets[entry->topology.key.low & cache->bucket_mask];

        while (*at != entry)
                at = &(*at)->next_in_bucket;
        *at = entry->next_in_bucket;
        hr_list_remove(&entry->by_use);
        cache->stats.bytes -= entry->bytes;
        --cache->stats.entries;
}

static void forget(struct hr_plan_cache *cache, struct entry *entry) {
        cache->forgotten[cache->forgotten_next++ % FORGOTTEN_COUNT] = entry->topology.key.low;
        ++cache->stats.evictions;
        unlink_entry(cache, entry);
        entry_free(entry);
}

static void evict(struct hr_plan_cache *cache, uint64_t room) {
        while (!hr_list_is_empty(&cache->by_use) &&
               cache->stats.bytes + room > cache->stats.bytes_max)
                forget(cache, HR_CONTAINER_OF(cache->by_use.next, struct entry, by_use));
}

struct hr_plan_cache_evicted hr_plan_cache_evict(struct hr_plan_cache *cache) {
        struct hr_plan_cache_evicted evicted = {0};
        struct hr_list *link = cache->by_use.next;

        while (link != &cache->by_use) {
                struct entry *entry = HR_CONTAINER_OF(link, struct entry, by_use);

                link = link->next;
                if (atomic_load_explicit(&entry->plan->refs, memory_order_acquire) > 1) {
                        ++evicted.kept_entries;
                        evicted.kept_bytes += entry->bytes;
                        continue;
                }
                ++evicted.entries;
                evicted.bytes += entry->bytes;
                forget(cache, entry);
        }
        return evicted;
}

/* More buckets when chains grow; without memory the chains just stay longer. */
static void grow_buckets(struct hr_plan_cache *cache) {
        uint32_t count = (cache->bucket_mask + 1) * 2;
        struct entry **buckets;

        if (cache->stats.entries <= cache->bucket_mask || count == 0)
                return;
        buckets = calloc(count, sizeof *buckets);
        if (!buckets)
                return;
        for (struct hr_list *link = cache->by_use.next; link != &cache->by_use; link = link->next) {
                struct entry *entry = HR_CONTAINER_OF(link, struct entry, by_use);
                struct entry **bucket = &buckets[entry->topology.key.low & (count - 1)];

                entry->next_in_bucket = *bucket;
                *bucket = entry;
        }
        free(cache->buckets);
        cache->buckets = buckets;
        cache->bucket_mask = count - 1;
}

/* Keeps the plan unless it alone exceeds the bound. Takes the topology in either case. */
static void keep(struct hr_plan_cache *cache, struct hr_topology *topology, size_t suffix_bytes,
                 struct hr_plan *plan) {
        uint64_t bytes =
                sizeof(struct entry) + topology->size + sizeof *plan + plan->arena.used_bytes;
        struct entry *entry = NULL;

        evict(cache, HR_MIN(bytes, cache->stats.bytes_max));
        if (bytes <= cache->stats.bytes_max)
                entry = calloc(1, sizeof *entry);
        if (!entry) {
                hr_topology_deinit(topology);
                return;
        }
        entry->topology = *topology;
        entry->suffix_bytes = suffix_bytes;
        entry->plan = hr_plan_ref(plan);
        entry->bytes = bytes;
        entry->next_in_bucket = cache->buckets[topology->key.low & cache->bucket_mask];
        cache->buckets[topology->key.low & cache->bucket_mask] = entry;
        hr_list_append(&cache->by_use, &entry->by_use);
        cache->stats.bytes += bytes;
        ++cache->stats.entries;
        grow_buckets(cache);
}

static hr_status get(struct hr_plan_cache *cache, const struct hr_plan_request *request,
                     struct hr_plan_facts *facts, struct hr_diag *diag, struct hr_plan **ret_plan,
                     hr_plan_origin *ret_origin, uint32_t *ret_first_different) {
        struct hr_topology topology = {0};
        struct entry *entry;
        uint8_t *suffix = NULL;
        size_t suffix_bytes = 0;
        hr_status status;

        HR_TRY(suffix_make(request, facts, diag, &suffix, &suffix_bytes));
        entry = find(cache, request->graph, suffix, suffix_bytes);
        if (entry) {
                hr_list_remove(&entry->by_use);
                hr_list_append(&cache->by_use, &entry->by_use);
                ++cache->stats.count[HR_PLAN_HIT];
                *ret_origin = HR_PLAN_HIT;
                *ret_first_different = HR_TENSOR_NONE;
                *ret_plan = hr_plan_ref(entry->plan);
                return HR_OK;
        }
        HR_TRY(hr_topology_init(&topology, request->graph, suffix, suffix_bytes, diag));
        status = hr_plan_new(request, diag, ret_plan);
        if (status != HR_OK) {
                hr_topology_deinit(&topology);
                return status;
        }
        *ret_origin = miss_reason(cache, &topology, suffix, suffix_bytes, ret_first_different);
        ++cache->stats.count[*ret_origin];
        keep(cache, &topology, suffix_bytes, *ret_plan);
        return HR_OK;
}

hr_status hr_plan_cache_get(struct hr_plan_cache *cache, const struct hr_plan_request *request,
                            struct hr_diag *diag, struct hr_plan **ret_plan,
                            hr_plan_origin *ret_origin, uint32_t *ret_first_different) {
        struct hr_plan_facts facts;
        hr_plan_origin origin;
        uint32_t first;
        hr_status status;

        HR_TRY(hr_plan_facts_init(&facts, request, diag));
        status = get(cache, request, &facts, diag, ret_plan, ret_origin ? ret_origin : &origin,
                     ret_first_different ? ret_first_different : &first);
        hr_plan_facts_deinit(&facts);
        return status;
}
