/*
 * What a run has written when it is cancelled: after every number of commands on the virtual clock,
 * the states that the run names are those that have changed.
 */
#include "tests/fake/studio.h"

enum { STATES = 5, DEVICES = 3, WIDTH = 8, STEPS_MOST = 400 };

struct desk {
        struct studio studio;
        struct scene scene;
        struct hr_leaf_home homes[STATES + 1];
        struct hr_state_use use, *uses[1];
        float input[WIDTH];
};

/* States s0 ... on devices in turn; a chain adds into one after the other. With `away`, each is
 * written on another device than its own and carried back. */
static void desk_open(struct desk *desk, bool away) {
        static const char *const names[STATES] = {"s0", "s1", "s2", "s3", "s4"};
        struct hr_fake_config config = {.peer = true, .launch_ns = 1000, .command_ns = 10};
        struct scene *scene = &desk->scene;
        uint32_t states[STATES], last;

        memset(desk, 0, sizeof *desk);
        studio_init(&desk->studio, DEVICES, &config);
        scene_init(scene, WIDTH);
        last = scene_leaf(scene, HR_LEAF_INPUT, "x");
        for (uint32_t i = 0; i < STATES; ++i)
                states[i] = scene_leaf(scene, HR_LEAF_STATE, names[i]);
        for (uint32_t i = 0; i < STATES; ++i) {
                int32_t where = (int32_t) ((i + away) % DEVICES);

                last = scene_node(scene, HR_OP_ADD, last, last, where);
                last = scene_in_place(scene, HR_OP_ADD, states[i], last, where);
        }
        scene_output(scene, last);
        scene_finish(scene);
        for (uint32_t i = 0; i < STATES; ++i)
                HR_EXPECT_OK(hr_buffer_new(desk->studio.devices[i % DEVICES], sizeof desk->input,
                                           HR_USAGE_ANY, &desk->studio.diag,
                                           &desk->homes[states[i]].buffer),
                             &desk->studio.diag);
        for (int i = 0; i < WIDTH; ++i)
                desk->input[i] = (float) (i + 1);
        desk->uses[0] = &desk->use;
}

static void desk_close(struct desk *desk) {
        for (uint32_t i = 0; i <= STATES; ++i)
                hr_buffer_unref(desk->homes[i].buffer);
        scene_deinit(&desk->scene);
        studio_deinit(&desk->studio);
}

/* Leaves that are not as they were, which is all zeros; then they are again. */
static uint32_t changed(struct desk *desk) {
        uint32_t set = 0;

        for (uint32_t leaf = 1; leaf <= STATES; ++leaf) {
                float *values = desk->homes[leaf].buffer->base;

                for (int i = 0; i < WIDTH; ++i) {
                        set |= values[i] != 0 ? 1U << leaf : 0;
                        values[i] = 0;
                }
        }
        return set;
}

/* Lets `steps` commands happen, cancels, and compares. Returns the set. */
static uint32_t cancel_after(struct desk *desk, struct hr_pipeline *pipeline, uint32_t steps,
                             bool *ret_was_over) {
        struct take take;
        uint32_t leaves[STATES + 1], count, named = 0, found;
        bool over;

        take_init(&take, &desk->studio);
        take.inputs[0] = (struct hr_run_input){desk->input, sizeof desk->input};
        HR_EXPECT_OK(hr_run_start(pipeline, &take.run, &desk->studio.diag), &desk->studio.diag);
        for (uint32_t i = 0; i < steps && take.done_count == 0; ++i)
                HR_EXPECT(hr_fake_step(desk->studio.world));
        over = take.done_count > 0;
        hr_run_cancel(&take.run, HR_E_CANCELLED, "TEST");
        HR_EXPECT_EQ(take_wait(&take), over ? HR_OK : HR_E_CANCELLED);
        hr_fake_run(desk->studio.world);
        count = hr_run_written_states(&take.run, leaves, STATES + 1);
        for (uint32_t i = 0; i < count; ++i) {
                HR_EXPECT(!(named >> leaves[i] & 1));
                named |= 1U << leaves[i];
        }
        found = changed(desk);
        /* What is carried back may have been computed and not have arrived. */
        HR_EXPECT_EQ(named & found, found);
        *ret_was_over = over;
        return named;
}

static void cancel_everywhere(bool away) {
        uint32_t before = 0, grown = 0;
        bool was_over = false;

        for (uint32_t steps = 0; steps < STEPS_MOST && !was_over; ++steps) {
                struct hr_pipeline *pipeline;
                struct desk desk;
                uint32_t named;

                desk_open(&desk, away);
                pipeline = studio_pipeline(&desk.studio, &desk.scene, desk.homes, desk.uses, 1, 2);
                named = cancel_after(&desk, pipeline, steps, &was_over);
                HR_EXPECT_EQ(named & before, before); /* later is never less */
                grown += named != before;
                before = named;
                hr_pipeline_free(pipeline);
                desk_close(&desk);
        }
        HR_EXPECT(was_over);
        HR_EXPECT_EQ(before, ((1U << STATES) - 1) << 1);
        HR_EXPECT_EQ(grown, STATES); /* one after the other, the first not at once */
}

HR_TEST(a_cancelled_run_names_the_states_it_has_written) {
        cancel_everywhere(false);
}

HR_TEST(states_that_are_carried_back_are_named) {
        cancel_everywhere(true);
}

/* Nothing of a run that failed before this one is named. */
HR_TEST(each_run_names_its_own) {
        struct hr_pipeline *pipeline;
        struct desk desk;
        bool was_over;

        desk_open(&desk, false);
        pipeline = studio_pipeline(&desk.studio, &desk.scene, desk.homes, desk.uses, 1, 2);
        HR_EXPECT(cancel_after(&desk, pipeline, STEPS_MOST, &was_over) != 0);
        HR_EXPECT(was_over);
        HR_EXPECT_EQ(cancel_after(&desk, pipeline, 0, &was_over), 0);
        HR_EXPECT(!was_over);
        hr_pipeline_free(pipeline);
        desk_close(&desk);
}
