#include "daemon/debug.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "daemon/rpc.h"

static void log_lines(hr_log_level level, const char *text) {
        while (*text) {
                int bytes = (int) strcspn(text, "\n");

                hr_log(level, "plan", "%.*s", bytes, text);
                text += bytes + 1;
        }
}

/* What this request has done to the session's compute memory. */
static void describe_realloc(const struct hr_request *request, const struct hr_graph *graph,
                             char *line, size_t line_bytes) {
        const struct hr_binding *binding = request->context;
        const struct hr_workspace_stats *latest = &binding->realloc_latest;
        const struct hr_fleet *fleet = hr_engine_fleet(request->server->engine);
        size_t bytes = 0;
        const char *name;

        if (binding->reallocs == 0) {
                snprintf(line, line_bytes, "realloc: none\n");
                return;
        }
        name = latest->tensor < hr_graph_tensor_count(graph)
                       ? hr_graph_name(graph, latest->tensor, &bytes)
                       : "";
        snprintf(line, line_bytes,
                 "realloc: %" PRIu64 ", the latest on %s for tensor %u %.*s: %" PRIu64
                 " to %" PRIu64 " bytes\n",
                 binding->reallocs, hr_fleet_device(fleet, latest->device)->props.name,
                 latest->tensor, (int) HR_MIN(bytes, (size_t) 80), name, latest->old_bytes,
                 latest->new_bytes);
        for (char *c = line; *c; c++)
                if ((unsigned char) *c < ' ' && c[1] != '\0')
                        *c = '?';
}

/* The text of some parts, or NULL. */
static char *text_of(const struct hr_request *request, const struct hr_plan *plan,
                     const struct hr_graph *graph, uint32_t parts, size_t *ret_bytes) {
        char realloc_line[256] = "", *text = NULL, *longer;
        size_t bytes = 0, more;

        if (hr_plan_debug(plan, graph, hr_engine_fleet(request->server->engine), parts, NULL, &text,
                          &bytes) != HR_OK)
                return NULL;
        if (parts & HR_DEBUG_REALLOC)
                describe_realloc(request, graph, realloc_line, sizeof realloc_line);
        more = strlen(realloc_line);
        longer = realloc(text, bytes + more + 1);
        if (!longer) {
                free(text);
                return NULL;
        }
        memcpy(longer + bytes, realloc_line, more + 1);
        *ret_bytes = bytes + more;
        return longer;
}

void hr_debug_submit(struct hr_request *request, const struct hr_plan *plan,
                     const struct hr_graph *graph) {
        const struct hr_binding *binding = request->context;
        uint32_t configured = (uint32_t) request->server->config->debug;
        uint32_t asked = binding->submit.debug;
        size_t bytes = 0;
        char *text;

        if (configured) {
                text = text_of(request, plan, graph, configured, &bytes);
                if (text)
                        log_lines(HR_LOG_NOTICE, text);
                free(text);
        }
        if (!(asked & HR_DEBUG_ALL))
                return;
        text = text_of(request, plan, graph, asked, &bytes);
        if (!text)
                return;
        if (asked & HR_DEBUG_ALL & ~configured)
                log_lines(HR_LOG_INFO, text);
        if (asked & HR_DEBUG_TEXT) {
                request->reply_memory = text;
                request->reply_bytes = bytes;
        } else {
                free(text);
        }
}
