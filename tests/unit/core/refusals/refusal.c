/* See refusal.h. Every graph is built, its nodes filled in by inference, then validated: the answer
 * is that of whichever objects first. */
#include "tests/unit/core/refusals/refusal.h"

#include "tests/build.h"
#include "tests/harness.h"

void (*refusal_accepted)(const struct hr_graph *graph, uint32_t id);

struct attempt {
        const struct refusal_node *node;
        struct refusal_shape own, sources[REFUSAL_SOURCES];
        uint64_t own_nb[HR_DIMS], own_offset;
        bool gaps[REFUSAL_SOURCES], apart[REFUSAL_SOURCES], absent[REFUSAL_SOURCES],
          nb_is_set[HR_DIMS];
        int32_t params[HR_OP_PARAM_WORDS];
        uint32_t source_count;
};

struct answer {
        hr_status status;
        struct hr_diag diag;
        struct hr_tensor own; /* as inferred */
};

static struct attempt attempt_of(const struct refusal_node *node) {
        struct attempt attempt = { .node = node, .own = node->own,
          .source_count = node->source_count };

        memcpy(attempt.sources, node->sources, sizeof attempt.sources);
        memcpy(attempt.params, node->params, sizeof attempt.params);
        return attempt;
}

static void attempt_change(struct attempt *attempt, const struct refusal_change *change) {
        switch ((enum refusal_what) change->what) {
        case REFUSAL_NOTHING:
                break;
        case REFUSAL_TYPE:
                attempt->sources[change->at].type = (uint32_t) change->value;
                break;
        case REFUSAL_NE:
                attempt->sources[change->at].ne[change->which] = change->value;
                break;
        case REFUSAL_GAPS:
                attempt->gaps[change->at] = true;
                break;
        case REFUSAL_APART:
                attempt->apart[change->at] = true;
                break;
        case REFUSAL_ABSENT:
                attempt->absent[change->at] = true;
                break;
        case REFUSAL_WORD:
                attempt->params[change->at] = (int32_t) change->value;
                break;
        case REFUSAL_OWN_TYPE:
                attempt->own.type = (uint32_t) change->value;
                break;
        case REFUSAL_OWN_NE:
                attempt->own.ne[change->which] = change->value;
                break;
        case REFUSAL_OWN_NB:
                attempt->own_nb[change->which] = (uint64_t) change->value;
                attempt->nb_is_set[change->which] = true;
                break;
        case REFUSAL_OWN_OFFSET:
                attempt->own_offset = (uint64_t) change->value;
                break;
        }
}

/* ---- Building -------------------------------------------------------------------------------- */

/* What a source that lies in another way is made of; first_view of views not yet needed. */
struct plan {
        uint32_t leaves[REFUSAL_SOURCES], ids[REFUSAL_SOURCES];
};

static uint32_t leaf_add(struct hr_build *build, const struct attempt *attempt, uint32_t i) {
        const struct refusal_shape *shape = &attempt->sources[i];
        int64_t ne[HR_DIMS];

        memcpy(ne, shape->ne, sizeof ne);
        if (attempt->apart[i]) {
                ne[0] *= 2;
        } else if (attempt->gaps[i]) {
                ne[0] = shape->ne[1] == 1 ? 2 : shape->ne[1];
                ne[1] = shape->ne[0];
        }
        return hr_build_leaf(build, HR_LEAF_INPUT, shape->type, "leaf", ne[0], ne[1], ne[2], ne[3]);
}

/* A window on the first part of each row of `from`. */
static uint32_t window_add(struct hr_build *build, uint32_t from, int64_t ne0) {
        struct hr_tensor base = *hr_build_tensor(build, from);
        uint32_t id = hr_build_node(build, HR_OP_VIEW, base.type, ne0, base.ne[1], base.ne[2],
                                    base.ne[3], 1, &from);

        memcpy(hr_build_tensor(build, id)->nb, base.nb, sizeof base.nb);
        return id;
}

static uint32_t source_add(struct hr_build *build, const struct attempt *attempt, uint32_t i,
                           uint32_t leaf) {
        const struct refusal_shape *shape = &attempt->sources[i];
        uint32_t id = leaf;

        if (attempt->apart[i])
                return window_add(build, leaf, shape->ne[0]);
        if (!attempt->gaps[i])
                return leaf;
        if (shape->ne[1] == 1)
                id = window_add(build, leaf, 1);
        return hr_build_node(build, HR_OP_TRANSPOSE, shape->type, shape->ne[0], shape->ne[1],
                             shape->ne[2], shape->ne[3], 1, &id);
}

static struct hr_graph *attempt_build(const struct attempt *attempt, uint32_t *ret_views) {
        struct hr_build *build = hr_build_new();
        uint32_t leaves[REFUSAL_SOURCES], ids[REFUSAL_SOURCES], own, first;
        struct hr_tensor *tensor;

        for (uint32_t i = 0; i < attempt->source_count; i++)
                if (!attempt->absent[i])
                        leaves[i] = leaf_add(build, attempt, i);
        for (uint32_t i = 0; i < attempt->source_count; i++)
                ids[i] = attempt->absent[i] ? HR_TENSOR_NONE
                                            : source_add(build, attempt, i, leaves[i]);
        own = hr_build_node(build, attempt->node->op, attempt->own.type, attempt->own.ne[0],
                            attempt->own.ne[1], attempt->own.ne[2], attempt->own.ne[3],
                            attempt->source_count, ids);
        tensor = hr_build_tensor(build, own);
        memcpy(tensor->params, attempt->params, sizeof tensor->params);
        tensor->view_offset = attempt->own_offset;
        for (int i = 0; i < HR_DIMS; i++)
                if (attempt->nb_is_set[i])
                        tensor->nb[i] = attempt->own_nb[i];
        first = attempt->source_count;
        for (uint32_t i = 0; i < attempt->source_count; i++)
                first -= attempt->absent[i];
        *ret_views = own - first;
        return hr_build_finish(build);
}

static struct answer attempt_ask(const struct attempt *attempt) {
        const struct hr_graph_limits limits = { .tensor_bytes_max = UINT64_C(1) << 40 };
        struct answer answer = { 0 };
        uint32_t views, own;
        struct hr_graph *graph = attempt_build(attempt, &views);

        own = hr_graph_tensor_count(graph) - 1;
        for (uint32_t id = own - views; id < own; id++)
                HR_EXPECT_OK(hr_graph_infer(graph, id, &answer.diag), &answer.diag);
        answer.status = hr_graph_infer(graph, own, &answer.diag);
        if (answer.status == HR_OK)
                answer.status = hr_graph_validate(graph, &limits, &answer.diag);
        answer.own = graph->tensors[own];
        if (answer.status == HR_OK && refusal_accepted)
                refusal_accepted(graph, own);
        hr_graph_unref(graph);
        return answer;
}

/* ---- Judging --------------------------------------------------------------------------------- */

static void judge(const struct attempt *attempt, const struct answer *answer, const char *what,
                  const char *reason, const char *words) {
        const char *op = hr_op_name(attempt->node->op);
        const char *got = answer->diag.status ? hr_diag_reason(&answer->diag) : "";

        if (!reason && answer->status == HR_OK)
                return;
        if (reason && answer->status == HR_E_INVALID && strstr(reason, got) && *got &&
            strstr(answer->diag.words, op) && (!words || strstr(answer->diag.words, words)) &&
            (answer->diag.has_node || answer->diag.has_tensor))
                return;
        hr_test_fail(__FILE__, __LINE__, "%s, %s: got %s %s \"%s\", expected %s \"%s\"", op, what,
                     hr_status_name(answer->status), got, answer->diag.words,
                     reason ? reason : "OK", words ? words : "");
}

static void refusals_run(const struct refusal_node *node) {
        char what[96];

        for (size_t i = 0; node->refusals[i].reason; i++) {
                const struct refusal *refusal = &node->refusals[i];
                struct attempt attempt = attempt_of(node);
                struct answer answer;

                for (int c = 0; c < REFUSAL_CHANGES; c++)
                        attempt_change(&attempt, &refusal->changes[c]);
                answer = attempt_ask(&attempt);
                (void) snprintf(what, sizeof what, "refusal %zu (%s)", i, refusal->words);
                judge(&attempt, &answer, what, refusal->reason, refusal->words);
        }
}

/* Every plain type; block types are tried where a table says so. */
static void types_run(const struct refusal_node *node) {
        static const struct {
                uint32_t type;
                char letter;
        } all[] = { { HR_TYPE_F32, 'f' }, { HR_TYPE_F16, 'h' }, { HR_TYPE_BF16, 'b' },
                    { HR_TYPE_I32, 'i' }, { HR_TYPE_I64, 'l' }, { HR_TYPE_I8, '-' },
                    { HR_TYPE_I16, '-' } };
        char what[96];

        for (uint32_t i = 0; i < node->source_count; i++)
                for (size_t t = 0; node->types[i] && t < HR_ARRAY_LENGTH(all); t++) {
                        bool is_right = strchr(node->types[i], all[t].letter) != NULL;
                        struct attempt attempt = attempt_of(node);
                        struct answer answer;

                        attempt.sources[i].type = all[t].type;
                        answer = attempt_ask(&attempt);
                        (void) snprintf(what, sizeof what, "source %u of type %s", i,
                                        hr_type_name(all[t].type));
                        judge(&attempt, &answer, what, is_right ? NULL : "DTYPE or SHAPE", NULL);
                }
}

static void layouts_run(const struct refusal_node *node) {
        char what[96];

        for (uint32_t i = 0; i < node->source_count; i++) {
                const int64_t *ne = node->sources[i].ne;
                bool is_vector = ne[1] == 1 && ne[2] == 1 && ne[3] == 1;
                bool is_whole = (node->contiguous >> i & 1) != 0;
                bool is_dense = is_whole || (node->dense >> i & 1) != 0;
                struct attempt gaps = attempt_of(node), apart = attempt_of(node);
                struct answer answer;

                gaps.gaps[i] = apart.apart[i] = true;
                if (ne[0] > 1 && !hr_type_info(node->sources[i].type)->is_block) {
                        answer = attempt_ask(&gaps);
                        (void) snprintf(what, sizeof what, "gaps in the rows of source %u", i);
                        judge(&gaps, &answer, what, is_dense ? "STRIDE or SHAPE" : NULL, NULL);
                }
                if (!is_vector) {
                        answer = attempt_ask(&apart);
                        (void) snprintf(what, sizeof what, "rows of source %u apart", i);
                        judge(&apart, &answer, what, is_whole ? "STRIDE or SHAPE" : NULL, NULL);
                }
        }
}

static void counts_run(const struct refusal_node *node) {
        const struct hr_op_info *info = hr_op_info(node->op);
        struct attempt attempt = attempt_of(node);
        struct answer answer;

        for (uint32_t i = 0; i < (uint32_t) info->sources_min; i++) {
                attempt = attempt_of(node);
                attempt.absent[i] = true;
                answer = attempt_ask(&attempt);
                judge(&attempt, &answer, "a source less", "ARITY", "is missing");
        }
        attempt = attempt_of(node);
        while (attempt.source_count <= (uint32_t) info->sources_max &&
               attempt.source_count < REFUSAL_SOURCES)
                attempt.sources[attempt.source_count++] = (struct refusal_shape) F32(1, 1, 1, 1);
        if (attempt.source_count > (uint32_t) info->sources_max) {
                answer = attempt_ask(&attempt);
                judge(&attempt, &answer, "a source more", "ARITY", "at most");
        }
}

/* As inferred, then declared otherwise. */
static void declaration_run(const struct refusal_node *node, int dim, const char *reason) {
        const struct hr_graph_limits limits = { .tensor_bytes_max = UINT64_C(1) << 40 };
        struct attempt attempt = attempt_of(node);
        struct answer answer = { 0 };
        uint32_t views;
        struct hr_graph *graph = attempt_build(&attempt, &views);
        uint32_t own = hr_graph_tensor_count(graph) - 1;
        struct hr_tensor *tensor = &graph->tensors[own];
        char what[96];

        HR_EXPECT_OK(hr_graph_infer(graph, own, &answer.diag), &answer.diag);
        if (dim < HR_DIMS) {
                tensor->ne[dim] += dim == 0 ? hr_type_info(tensor->type)->block_elements : 1;
                if (tensor->view_base == HR_TENSOR_NONE)
                        HR_EXPECT_OK(hr_tensor_set_contiguous(tensor, &answer.diag), &answer.diag);
        } else if (dim == HR_DIMS) {
                tensor->type = tensor->type == HR_TYPE_F64 ? HR_TYPE_I64 : HR_TYPE_F64;
                if (tensor->view_base == HR_TENSOR_NONE)
                        HR_EXPECT_OK(hr_tensor_set_contiguous(tensor, &answer.diag), &answer.diag);
        } else {
                tensor->nb[3] += 64;
        }
        answer.status = hr_graph_validate(graph, &limits, &answer.diag);
        hr_graph_unref(graph);
        (void) snprintf(what, sizeof what, "declared otherwise (%d)", dim);
        judge(&attempt, &answer, what, reason, NULL);
}

static void declarations_run(const struct refusal_node *node) {
        struct attempt attempt = attempt_of(node);
        struct answer answer;

        for (int dim = 0; dim < HR_DIMS && !(node->free & FREE_SHAPE); dim++)
                declaration_run(node, dim, "SHAPE");
        if (!(node->free & FREE_TYPE))
                declaration_run(node, HR_DIMS, "DTYPE");
        if (node->op != HR_OP_VIEW)
                declaration_run(node, HR_DIMS + 1, "STRIDE");
        if (!(node->free & FREE_PARAMS)) {
                attempt.params[HR_OP_PARAM_WORDS - 1] = 1;
                answer = attempt_ask(&attempt);
                judge(&attempt, &answer, "a parameter too many", "PARAM",
                  "unused word 15 is not 0");
        }
}

void refusal_table_run(const struct refusal_table *table, bool seen[HR_OP_LIMIT]) {
        for (size_t i = 0; i < table->count; i++) {
                const struct refusal_node *node = &table->nodes[i];
                struct attempt attempt = attempt_of(node);
                struct answer answer = attempt_ask(&attempt);

                judge(&attempt, &answer, table->name, NULL, NULL);
                HR_EXPECT(memcmp(answer.own.ne, node->own.ne, sizeof node->own.ne) == 0 &&
                          answer.own.type == node->own.type);
                refusals_run(node);
                types_run(node);
                layouts_run(node);
                counts_run(node);
                declarations_run(node);
                seen[node->op] = true;
        }
}
