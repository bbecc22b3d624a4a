/* See deny.h. */
#include "core/deny.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 40

/* "NAME" or "NAME>123". */
static hr_status deny_one(const char *item, struct hr_diag *diag, struct hr_deny *deny) {
        char name[NAME_BYTES];
        const char *number = strchr(item, '>');
        char *end = NULL;
        long long most = 0;
        int op = -1;

        (void) snprintf(name, sizeof name, "%.*s", (int) strcspn(item, ">"), item);
        if (strcmp(name, "*") != 0)
                op = hr_op_from_name(name);
        if (op < 0 && strcmp(name, "*") != 0)
                return hr_fail_reason(diag, HR_E_INVALID, "OP", "'%s' is no op", name);
        if (number) {
                errno = 0;
                most = strtoll(number + 1, &end, 10);
                if (number[1] < '0' || number[1] > '9' || *end != '\0' || errno ||
                    most >= INT64_MAX)
                        return hr_fail_reason(diag, HR_E_INVALID, "OP", "'%s' has no length", item);
        }
        for (uint32_t i = 0; i < HR_OP_LIMIT; ++i)
                if (op < 0 ? hr_op_info(i) && !hr_op_is_view(i) : i == (uint32_t) op)
                        deny->most[i] = number ? most + 1 : -1;
        return HR_OK;
}

hr_status hr_deny_parse(const char *list, struct hr_diag *diag, struct hr_deny *ret_deny) {
        struct hr_deny deny = { 0 };

        while (list && *list != '\0') {
                size_t bytes = strcspn(list, ",");
                char item[NAME_BYTES];

                while (bytes > 0 && *list == ' ') {
                        ++list;
                        --bytes;
                }
                (void) snprintf(item, sizeof item, "%.*s", (int) HR_MIN(bytes, sizeof item), list);
                HR_TRY(deny_one(item, diag, &deny));
                list += bytes;
                if (*list == ',' && *++list == '\0')
                        return hr_fail_reason(diag, HR_E_INVALID, "OP", "ends with a comma");
        }
        *ret_deny = deny;
        return HR_OK;
}

bool hr_deny_refuses(const struct hr_deny *deny, const struct hr_graph *graph, uint32_t tensor) {
        const struct hr_tensor *node = &graph->tensors[tensor];
        int64_t most = node->op < HR_OP_LIMIT ? deny->most[node->op] : 0, longest = node->ne[0];

        if (most <= 0)
                return most < 0;
        for (uint32_t i = 0; i < node->source_count; ++i) {
                uint32_t source = hr_graph_source(graph, node, i);

                if (source != HR_TENSOR_NONE)
                        longest = HR_MAX(longest, graph->tensors[source].ne[0]);
        }
        return longest >= most;
}
