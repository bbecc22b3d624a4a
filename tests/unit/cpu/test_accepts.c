/* What validation accepts, the CPU computes: it is the last of every list of devices, and a graph
 * must not be refused on a machine without a GPU that is taken on one with it. The nodes are those
 * that the tables of refusals try: right ones, with every type and layout of a source. */
#include <inttypes.h>

#include "tests/unit/core/refusals/refusal.h"
#include "tests/unit/cpu/op_rig.h"

static struct {
        struct hr_device *device;
        uint32_t accepted, refused;
} tried;

static void say(const struct hr_tensor *tensor) {
        printf(" %s", hr_type_name(tensor->type));
        for (int i = 0; i < HR_DIMS; i++)
                printf("%c%" PRId64 "/%" PRIu64, i ? ',' : '[', tensor->ne[i], tensor->nb[i]);
        printf("]");
}

static void ask(const struct hr_graph *graph, uint32_t id) {
        const struct hr_tensor *own = &graph->tensors[id];

        tried.accepted++;
        if (hr_device_supports_op(tried.device, graph, id))
                return;
        tried.refused++;
        printf("%s, parameters", hr_op_name(own->op));
        for (int i = 0; i < 4; i++)
                printf(" %" PRId32, own->params[i]);
        printf(":");
        say(own);
        printf(" of");
        for (uint32_t i = 0; i < own->source_count; i++) {
                const uint32_t source = hr_graph_source(graph, own, i);

                if (source != HR_TENSOR_NONE)
                        say(&graph->tensors[source]);
        }
        printf("\n");
}

HR_TEST(what_is_valid_is_computed) {
        static const struct refusal_table *const tables[] = {
                &refusals_of_shape, &refusals_of_math, &refusals_of_matrix, &refusals_of_conv,
                &refusals_of_recurrent,
        };
        bool seen[HR_OP_LIMIT] = { false };

        tried.device = rig_device("auto", 1);
        refusal_accepted = ask;
        for (size_t i = 0; i < HR_ARRAY_LENGTH(tables); i++)
                refusal_table_run(tables[i], seen);
        HR_EXPECT(tried.accepted > 500);
        HR_EXPECT_EQ(tried.refused, 0);
        tried.device = hr_device_unref(tried.device);
}
