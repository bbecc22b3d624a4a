/*
 * The engine's thread: work, one piece at a time, and between two pieces whatever nobody may plan
 * during: memory that pipelines leave, devices that are lost. And the engine's life.
 */
#include "daemon/engine_priv.h"

#include <stdlib.h>

#include "core/clock.h"

static void store_wake(void *arg) {
        struct hr_engine *engine = arg;

        atomic_store(&engine->store_wanted, true);
        hr_engine_wake(engine);
}

static struct hr_job *work_take(struct hr_engine *engine) {
        struct hr_list *place;

        hr_engine_turn_take(engine);
        place = hr_list_pop(&engine->work);
        if (place) {
                const uint64_t waited_ns = hr_clock_now_ns() - place_job(place)->posted_ns;

                engine->stats.jobs++;
                engine->stats.lag_max_ns = HR_MAX(engine->stats.lag_max_ns, waited_ns);
        }
        hr_engine_turn_give(engine);
        return place ? place_job(place) : NULL;
}

static void work_do(struct hr_job *job) {
        if (hr_job_is_stopped(job)) {
                if (job->cancel)
                        job->cancel(job);
                else
                        hr_engine_job_end(job);
                return;
        }
        job->phase = HR_JOB_RUNNING;
        job->started_ns = hr_clock_now_ns();
        job->work(job);
}

/* Work that ends later and has been told to stop. Jobs still in `work` are looked at when they are
 * taken. */
static void kept_stop_jobs(struct hr_engine *engine) {
        HR_LIST_FOR_EACH(place, &engine->kept) {
                struct hr_job *job = place_job(place);
                int stop = atomic_load(&job->stop);

                if (stop == HR_OK || !job->cancel)
                        continue;
                hr_job_fail(job, (hr_status) stop, NULL);
                job->cancel(job);
        }
}

void hr_bound_forget(struct hr_bound *bound) {
        hr_list_remove(&bound->settling);
}

/* Pipelines leave memory that has been replaced as soon as no run of theirs is in flight. */
static bool settle_one(struct hr_engine *engine) {
        struct hr_list *link;

        hr_engine_turn_take(engine);
        link = hr_list_pop(&engine->settling);
        if (link) {
                struct hr_bound *bound = HR_CONTAINER_OF(link, struct hr_bound, settling);

                (void) hr_workspace_settle(hr_pipeline_workspace(bound->pipeline));
        }
        hr_engine_turn_give(engine);
        return link;
}

/* Between two pieces of work, so that no planning is under way. */
static bool retire_lost(struct hr_engine *engine) {
        uint32_t count;

        if (!hr_fleet_has_losses(engine->fleet))
                return false;
        hr_engine_turn_take(engine);
        count = hr_fleet_retire(engine->fleet);
        hr_engine_turn_give(engine);
        hr_log(HR_LOG_ERROR, "engine", "%u of %u devices lost and retired, epoch=%llu", count,
               hr_fleet_device_count(engine->fleet),
               (unsigned long long) hr_fleet_epoch(engine->fleet));
        return true;
}

/* True when it did anything. */
static bool engine_round(struct hr_engine *engine) {
        struct hr_job *job;
        bool any = false;

        if (atomic_exchange(&engine->cancels_work, false))
                kept_stop_jobs(engine);
        /* First: what comes after an answer of DEVICE_LOST is planned without that device. */
        any = retire_lost(engine);
        job = work_take(engine);
        if (job) {
                work_do(job);
                any = true;
        }
        any = settle_one(engine) || any;
        if (atomic_exchange(&engine->store_wanted, false)) {
                hr_engine_turn_take(engine);
                if (hr_weights_store_step(engine->store))
                        atomic_store(&engine->store_wanted, true);
                hr_engine_turn_give(engine);
                any = true;
        }
        return any;
}

static bool engine_has_work(struct hr_engine *engine) {
        bool any;

        hr_engine_turn_take(engine);
        any = !hr_list_is_empty(&engine->work) || !hr_list_is_empty(&engine->settling);
        hr_engine_turn_give(engine);
        return any || hr_fleet_has_losses(engine->fleet) || atomic_load(&engine->store_wanted) ||
               atomic_load(&engine->cancels_work) || atomic_load(&engine->stopping);
}

static void engine_sleep(struct hr_engine *engine) {
        atomic_store(&engine->asleep, true);
        if (engine_has_work(engine)) {
                atomic_store(&engine->asleep, false);
                return;
        }
        (void) pthread_mutex_lock(&engine->sleep_lock);
        while (atomic_load(&engine->asleep))
                (void) pthread_cond_wait(&engine->sleep_condition, &engine->sleep_lock);
        (void) pthread_mutex_unlock(&engine->sleep_lock);
}

static void engine_main(void *arg) {
        struct hr_engine *engine = arg;

        for (;;) {
                if (engine_round(engine))
                        continue;
                if (atomic_load(&engine->stopping))
                        return;
                engine_sleep(engine);
        }
}

/* ---- life ------------------------------------------------------------------------------------ */

HR_DEFINE_CLEANUP(struct hr_engine *, hr_engine_freep, hr_engine_free)

hr_status hr_engine_new(const struct hr_engine_config *config, struct hr_diag *diag,
                        struct hr_engine **ret_engine) {
        HR_CLEANUP(hr_engine_freep) struct hr_engine *engine = calloc(1, sizeof *engine);
        const struct hr_limits *limits = &config->config->limits;
        struct hr_weights_store_config store_config;

        if (!engine)
                return hr_fail(diag, HR_E_EXHAUSTED, "no memory for the engine");
        engine->config = config->config;
        engine->fleet = config->fleet;
        engine->wake_loop = config->wake_loop;
        engine->wake_loop_at = config->wake_loop_at;
        engine->wake_arg = config->arg;
        atomic_store(&engine->due_ns, UINT64_MAX);
        (void) pthread_mutex_init(&engine->turn, NULL);
        (void) pthread_mutex_init(&engine->sleep_lock, NULL);
        (void) pthread_cond_init(&engine->sleep_condition, NULL);
        hr_mpsc_init(&engine->in);
        hr_mpsc_init(&engine->ended);
        hr_mpsc_init(&engine->out);
        hr_list_init(&engine->lanes);
        hr_list_init(&engine->work);
        hr_list_init(&engine->settling);
        hr_list_init(&engine->ending);
        hr_list_init(&engine->kept);
        store_config = (struct hr_weights_store_config){
                .fleet = config->fleet,
                .bytes_max = limits->weights_bytes,
                .resident_bytes_max = limits->resident_bytes,
                .cache_directory = engine->config->cache_directory,
                .cache_bytes_max = engine->config->cache_bytes,
                .keep = hr_config_keep(engine->config),
                .kept_sets_max = limits->kept_sets,
                .manifest_limits =
                        {
                                .tensors_max = limits->weights_tensors,
                                .tensor_bytes_max = limits->tensor_bytes,
                                .total_bytes_max = limits->upload_bytes,
                        },
                .wake = store_wake,
                .arg = engine,
        };
        HR_TRY(hr_admission_init(&engine->admission, hr_fleet_device_count(config->fleet),
                                 (uint32_t) config->config->limits.device_runs,
                                 config->config->limits.device_ahead_ns, diag));
        HR_TRY(hr_plan_cache_new(config->config->plan_cache_bytes, diag, &engine->plan_cache));
        HR_TRY(hr_weights_store_new(&store_config, diag, &engine->store));
        hr_weights_store_take_back(engine->store, config->inherited);
        HR_TRY(hr_thread_start(&engine->thread, "hr-engine", engine_main, engine, diag));
        *ret_engine = HR_STEAL(engine);
        return HR_OK;
}

void hr_engine_stop(struct hr_engine *engine) {
        if (!engine)
                return;
        atomic_store(&engine->stopping, true);
        hr_engine_wake(engine);
        hr_thread_join(&engine->thread);
        HR_ASSERT(hr_list_is_empty(&engine->lanes));
        HR_ASSERT(hr_list_is_empty(&engine->work));
        if (engine->store)
                engine->store = hr_weights_store_free(engine->store);
        if (engine->plan_cache)
                engine->plan_cache = hr_plan_cache_free(engine->plan_cache);
}

struct hr_engine *hr_engine_free(struct hr_engine *engine) {
        if (!engine)
                return NULL;
        hr_engine_stop(engine);
        hr_admission_deinit(&engine->admission);
        (void) pthread_cond_destroy(&engine->sleep_condition);
        (void) pthread_mutex_destroy(&engine->sleep_lock);
        (void) pthread_mutex_destroy(&engine->turn);
        free(engine);
        return NULL;
}
