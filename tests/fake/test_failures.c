/*
 * Every call and every command fails once: while pipelines are made, and while they run, plainly,
 * traced, observed, and two pipelines on one workspace and one state. Nothing is left over (the
 * sanitizers look), statuses are those of the failure, each run ends once, and later runs are
 * right.
 */
#include <string.h>

#include "scheduler/exec.h"
#include "tests/fake/plot.h"

HR_TEST(the_graph_computes_what_it_says) {
        for (uint32_t n = 0; n <= 4; ++n) {
                for (uint32_t form = 0; form < PLOT_FORMS * PLOT_MODES; ++form) {
                        struct hr_pipeline *pipeline = NULL;
                        struct hr_diag diag = {0};
                        struct plot plot;

                        plot_init(&plot, form % PLOT_FORMS);
                        plot.mode = form / PLOT_FORMS;
                        HR_EXPECT_OK(plot_pipeline(&plot, n, NULL, &diag, &pipeline), &diag);
                        expect_all_right(&plot, &pipeline, 1, 1);
                        expect_all_right(&plot, &pipeline, 1, 100);
                        hr_pipeline_free(pipeline);
                        plot_deinit(&plot);
                }
        }
}

/* ---- Failing calls -----------------------------------------------------------------------------
 */

/* Making a pipeline fails with the status of the call, or makes do with less; never is anything
 * left over, and the next attempt succeeds. Returns false when call n was not reached. */
static bool make_with_failure(uint64_t n, hr_status failure, bool all_later, uint32_t n_copies,
                              uint32_t form) {
        struct hr_pipeline *pipeline = NULL;
        struct hr_diag diag = {0};
        struct plot plot;
        hr_status status;
        uint64_t before[2], calls;

        plot_init(&plot, form);
        for (uint32_t d = 0; d < 2; ++d)
                before[d] = atomic_load(&plot.studio.devices[d]->used_bytes);
        calls = hr_fake_calls(plot.studio.world);
        hr_fake_fail_call(plot.studio.world, n, failure, all_later);
        status = plot_pipeline(&plot, n_copies, NULL, &diag, &pipeline);
        calls = hr_fake_calls(plot.studio.world) - calls;
        hr_fake_fail_call(plot.studio.world, 0, HR_OK, false);
        if (status != HR_OK) {
                HR_EXPECT_EQ(status, failure);
                HR_EXPECT_EQ(hr_status_scope(status), hr_status_scope(failure));
                HR_EXPECT_EQ(diag.status, failure);
                HR_EXPECT(diag.words[0]);
                HR_EXPECT(!pipeline);
                HR_EXPECT(calls >= n);
        } else {
                HR_EXPECT(calls < n || failure == HR_E_EXHAUSTED);
                expect_all_right(&plot, &pipeline, 1, 1);
        }
        pipeline = hr_pipeline_free(pipeline);
        for (uint32_t d = 0; d < 2; ++d)
                HR_EXPECT_EQ(atomic_load(&plot.studio.devices[d]->used_bytes), before[d]);
        hr_diag_clear(&diag);
        HR_EXPECT_OK(plot_pipeline(&plot, n_copies, NULL, &diag, &pipeline), &diag);
        expect_all_right(&plot, &pipeline, 1, 7);
        hr_pipeline_free(pipeline);
        plot_deinit(&plot);
        return calls >= n;
}

HR_TEST_LIMIT(every_call_fails_once_while_a_pipeline_is_made, 60) {
        static const hr_status failures[] = {HR_E_EXHAUSTED, HR_E_INTERNAL, HR_E_UNAVAILABLE};
        uint64_t most = 0;

        for (size_t f = 0; f < HR_ARRAY_LENGTH(failures); ++f) {
                for (uint32_t n_copies = 1; n_copies <= 3; n_copies += 2) {
                        for (int all_later = 0; all_later < 2; ++all_later) {
                                uint64_t n = 1;

                                while (make_with_failure(n, failures[f], all_later, n_copies,
                                                         n_copies))
                                        HR_EXPECT(++n < 1000);
                                most = HR_MAX(most, n);
                        }
                }
        }
        printf("up to %" PRIu64 " calls failed\n", most - 1);
        HR_EXPECT(most > 10);
}

/* What is failed, and how runs are made. */
struct trial {
        plot_mode mode;
        bool is_command;
        bool shares; /* two pipelines on one workspace take turns */
        uint32_t n_copies, form;
};

static uint64_t reached(const struct plot *plot, const struct trial *trial) {
        return trial->is_command ? hr_fake_commands(plot->studio.world)
                                 : hr_fake_calls(plot->studio.world);
}

/* Of six runs one fails, the one with the n-th call or command; the others that were started before
 * it was over, and six later ones, are right. Returns false when n was not reached. */
static bool run_with_failure(const struct trial *trial, uint64_t n, hr_status failure) {
        static struct shot shots[PLOT_RUNS];
        uint32_t count = trial->shares ? 2 : 1, failed = 0;
        struct hr_pipeline *pipelines[2] = {NULL};
        struct hr_workspace *workspace = NULL;
        struct hr_diag diag = {0};
        struct plot plot;
        uint64_t before;
        bool was_reached;

        plot_init(&plot, trial->form);
        plot.mode = trial->mode;
        HR_EXPECT_OK(hr_workspace_new(&diag, &workspace), &diag);
        for (uint32_t i = 0; i < count; ++i)
                HR_EXPECT_OK(plot_pipeline(&plot, trial->n_copies, workspace, &diag, &pipelines[i]),
                             &diag);
        hr_fake_run(plot.studio.world);
        before = reached(&plot, trial);
        if (trial->is_command)
                hr_fake_fail_command(plot.studio.world, n, failure);
        else
                hr_fake_fail_call(plot.studio.world, n, failure, false);
        volley(&plot, pipelines, count, 1, shots);
        was_reached = reached(&plot, trial) - before >= n;
        hr_fake_fail_call(plot.studio.world, 0, HR_OK, false);
        hr_fake_fail_command(plot.studio.world, 0, HR_OK);
        for (uint32_t i = 0; i < PLOT_RUNS; ++i) {
                if (shots[i].ended == HR_OK) {
                        expect_mixed(&shots[i]);
                        continue;
                }
                ++failed;
                HR_EXPECT_EQ(shots[i].ended, failure);
                HR_EXPECT_STREQ(shots[i].take.run.outcome.diag.reason, "SCRIPTED");
        }
        /* A trace lacks what could not be noted; its run is none the worse. */
        if (trial->mode == PLOT_TRACED && !trial->is_command)
                HR_EXPECT(failed <= was_reached);
        else
                HR_EXPECT_EQ(failed, was_reached);
        expect_all_right(&plot, pipelines, count, 20);
        for (uint32_t i = 0; i < count; ++i)
                hr_pipeline_free(pipelines[i]);
        hr_workspace_unref(workspace);
        plot_deinit(&plot);
        return was_reached;
}

static uint64_t fail_each(const struct trial *trial) {
        static const hr_status failures[] = {HR_E_EXHAUSTED, HR_E_INTERNAL, HR_E_UNAVAILABLE};
        uint64_t n = 1;

        while (run_with_failure(trial, n, failures[n % 3]))
                HR_EXPECT(++n < 2000);
        return n - 1;
}

static void fail_all_runs(bool is_command) {
        uint64_t most = 0;

        for (uint32_t n_copies = 1; n_copies <= 3; ++n_copies) {
                for (uint32_t form = 0; form < PLOT_FORMS; ++form) {
                        struct trial trial = {
                                .is_command = is_command, .n_copies = n_copies, .form = form};

                        most = HR_MAX(most, fail_each(&trial));
                }
        }
        printf("up to %" PRIu64 " %s failed\n", most, is_command ? "commands" : "calls");
        HR_EXPECT(most > 50);
}

HR_TEST_LIMIT(every_call_fails_once_while_it_runs, 120) {
        fail_all_runs(false);
}

HR_TEST_LIMIT(every_command_fails_once, 120) {
        fail_all_runs(true);
}

HR_TEST_LIMIT(every_call_and_command_fails_once_of_traced_and_observed_runs, 120) {
        for (plot_mode mode = PLOT_TRACED; mode < PLOT_MODES; ++mode) {
                for (uint32_t form = 2; form < PLOT_FORMS; form += 5) {
                        struct trial trial = {.mode = mode, .n_copies = 2, .form = form};

                        HR_EXPECT(fail_each(&trial) > 50);
                        trial.is_command = true;
                        HR_EXPECT(fail_each(&trial) > 50);
                }
        }
}

HR_TEST_LIMIT(every_call_and_command_fails_once_of_pipelines_that_share, 120) {
        for (uint32_t form = 0; form < PLOT_FORMS; ++form) {
                struct trial trial = {.shares = true, .n_copies = 1 + form % 2, .form = form};

                HR_EXPECT(fail_each(&trial) > 50);
                trial.is_command = true;
                HR_EXPECT(fail_each(&trial) > 50);
        }
}

/* The plots above whose devices have upload queues use them. */
HR_TEST(plots_use_upload_queues) {
        for (uint32_t form = 0; form < PLOT_FORMS; ++form) {
                struct hr_pipeline *pipeline = NULL;
                struct hr_diag diag = {0};
                struct plot plot;

                plot_init(&plot, form);
                HR_EXPECT_OK(plot_pipeline(&plot, 2, NULL, &diag, &pipeline), &diag);
                HR_EXPECT_EQ(plot.studio.fleet->uploads[0] != NULL, form % 3 != 0);
                hr_pipeline_free(pipeline);
                plot_deinit(&plot);
        }
}

/* Virtual time passes only while somebody waits for a device. No start of a run does, however many
 * are under way. */
HR_TEST(starting_lets_no_time_pass) {
        for (uint32_t form = 0; form < 4; ++form) {
                struct hr_pipeline *pipelines[2] = {NULL};
                struct hr_diag diag = {0};
                struct shot shots[6];
                struct plot plot;
                uint32_t started = 0;

                plot_init(&plot, form);
                for (uint32_t p = 0; p < 2; ++p)
                        HR_EXPECT_OK(plot_pipeline(&plot, 3, NULL, &diag, &pipelines[p]), &diag);
                hr_fake_run(plot.studio.world);
                for (uint32_t i = 0; i < 6; ++i) {
                        uint64_t before_ns = hr_fake_now_ns(plot.studio.world);

                        if (!hr_pipeline_has_slot(pipelines[i % 2]))
                                continue;
                        shoot(&plot, pipelines[i % 2], i, &shots[started++]);
                        HR_EXPECT_EQ(hr_fake_now_ns(plot.studio.world), before_ns);
                }
                HR_EXPECT(started >= 2);
                for (uint32_t i = 0; i < started; ++i)
                        HR_EXPECT_EQ(shot_wait(&shots[i]), HR_OK);
                HR_EXPECT_EQ(hr_fleet_exec_stats(plot.studio.fleet).device_waits, 0);
                for (uint32_t p = 0; p < 2; ++p)
                        hr_pipeline_free(pipelines[p]);
                plot_deinit(&plot);
        }
}

/* Constants that do not arrive fail every run of that pipeline, and no other's. */
HR_TEST(lost_constants_fail_the_runs_of_their_pipeline) {
        struct hr_pipeline *pipeline = NULL, *other = NULL;
        struct hr_diag diag = {0};
        struct shot shot;
        struct plot plot;

        plot_init(&plot, 1);
        hr_fake_fail_command(plot.studio.world, 1, HR_E_INTERNAL);
        HR_EXPECT_OK(plot_pipeline(&plot, 2, NULL, &diag, &pipeline), &diag);
        for (uint32_t i = 0; i < 3; ++i) {
                shoot(&plot, pipeline, i, &shot);
                HR_EXPECT_EQ(shot.started, HR_OK);
                HR_EXPECT_EQ(shot_wait(&shot), HR_E_INTERNAL);
                HR_EXPECT_EQ(shot.take.done_count, 1);
        }
        HR_EXPECT_OK(plot_pipeline(&plot, 2, NULL, &diag, &other), &diag);
        expect_all_right(&plot, &other, 1, 1);
        hr_pipeline_free(other);
        hr_pipeline_free(pipeline);
        plot_deinit(&plot);
}

/* A pipeline of another session: of the same graph, with a state and a workspace of its own. */
struct stranger {
        struct hr_state_use use;
        struct hr_buffer *state;
        struct hr_pipeline *pipeline;
};

static void stranger_init(struct stranger *stranger, struct plot *plot) {
        const struct hr_leaf_home home = plot->homes[plot->s];
        struct hr_diag diag = {0};

        memset(stranger, 0, sizeof *stranger);
        HR_EXPECT_OK(hr_buffer_new(home.buffer->device, home.buffer->bytes, HR_USAGE_ANY, &diag,
                                   &stranger->state),
                     &diag);
        plot->homes[plot->s].buffer = stranger->state;
        plot->uses[0] = &stranger->use;
        HR_EXPECT_OK(plot_pipeline(plot, 2, NULL, &diag, &stranger->pipeline), &diag);
        plot->homes[plot->s] = home;
        plot->uses[0] = &plot->use;
}

static void stranger_deinit(struct stranger *stranger) {
        hr_pipeline_free(stranger->pipeline);
        hr_buffer_unref(stranger->state);
}

/* An edge that is missing lets no run that has memory in common start until those in flight are
 * over: not of the same pipeline, nor of one with the same state. Others go on meanwhile. */
HR_TEST(a_missing_edge_holds_later_runs) {
        uint32_t held = 0;

        for (uint64_t n = 1; n < 40; ++n) {
                struct hr_pipeline *pipeline = NULL, *mate = NULL;
                struct stranger stranger;
                struct hr_diag diag = {0};
                struct shot shots[2], other;
                struct plot plot;

                plot_init(&plot, 2);
                HR_EXPECT_OK(plot_pipeline(&plot, 2, NULL, &diag, &pipeline), &diag);
                HR_EXPECT_OK(plot_pipeline(&plot, 2, NULL, &diag, &mate), &diag);
                stranger_init(&stranger, &plot);
                hr_fake_run(plot.studio.world);
                hr_fake_fail_call(plot.studio.world, n, HR_E_EXHAUSTED, false);
                shoot(&plot, pipeline, 1, &shots[0]);
                hr_fake_fail_call(plot.studio.world, 0, HR_OK, false);
                HR_EXPECT_EQ(shots[0].started, HR_OK);
                HR_EXPECT_EQ(hr_pipeline_has_slot(pipeline), !hr_pipeline_is_held(pipeline));
                HR_EXPECT_EQ(hr_pipeline_is_held(mate), hr_pipeline_is_held(pipeline));
                HR_EXPECT(!hr_pipeline_is_held(stranger.pipeline));
                shoot(&plot, pipeline, 2, &shots[1]);
                if (hr_pipeline_is_held(pipeline)) {
                        HR_EXPECT_EQ(shots[1].started, HR_E_UNAVAILABLE);
                        ++held;
                } else {
                        HR_EXPECT_EQ(shots[1].started, HR_OK);
                        HR_EXPECT_EQ(shot_wait(&shots[1]), HR_OK);
                }
                HR_EXPECT(hr_pipeline_has_slot(stranger.pipeline));
                shoot(&plot, stranger.pipeline, 3, &other);
                HR_EXPECT_EQ(other.started, HR_OK);
                HR_EXPECT_EQ(shot_wait(&other), HR_OK);
                expect_mixed(&other);
                (void) shot_wait(&shots[0]);
                HR_EXPECT(!hr_pipeline_is_held(pipeline) && !hr_pipeline_is_held(mate));
                expect_all_right(&plot, &pipeline, 1, 5);
                expect_all_right(&plot, &mate, 1, 5);
                hr_pipeline_free(mate);
                hr_pipeline_free(pipeline);
                stranger_deinit(&stranger);
                plot_deinit(&plot);
        }
        printf("%u calls were edges\n", held);
        HR_EXPECT(held >= 4);
}
