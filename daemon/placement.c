/*
 * Which device each tensor goes to.
 *
 * Two steps. First each tensor takes the first rule that matches; rules that name a device decide
 * at once. Then each `fit` rule distributes the tensors it took: they are sorted into layers, the
 * layers are laid end to end, and the line is cut where the devices' shares, laid end to end too,
 * meet. A layer goes to the device whose share holds its middle, so each cut is off by at most half
 * a layer, and a device's bytes, between two cuts, by at most one.
 *
 * Invariant: after success every tensor has a device below device_count, and the planned bytes of
 * all devices add up to the manifest's.
 */
#include "daemon/placement.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- Globs ----------------------------------------------------------------------------------- */

/* Does the set at pattern[0] == '[' hold c? Gives the bytes of the set; 0 when it has no end, and
 * then '[' stands for itself. */
static size_t glob_set(const char *pattern, size_t pattern_bytes, char c, bool *ret_match) {
        size_t i = 1;
        bool negated = false, match = false;

        if (i < pattern_bytes && (pattern[i] == '!' || pattern[i] == '^')) {
                negated = true;
                i++;
        }
        for (const size_t first = i; i < pattern_bytes; i++) {
                const unsigned char low = (unsigned char) pattern[i];
                unsigned char high = low;

                if (low == ']' && i > first) {
                        *ret_match = match != negated;
                        return i + 1;
                }
                if (i + 2 < pattern_bytes && pattern[i + 1] == '-' && pattern[i + 2] != ']') {
                        high = (unsigned char) pattern[i + 2];
                        i += 2;
                }
                match |= (unsigned char) c >= low && (unsigned char) c <= high;
        }
        return 0;
}

/* Matches one pattern element other than '*' against c. Gives its bytes, 0 for no match. */
static size_t glob_one(const char *pattern, size_t pattern_bytes, char c) {
        size_t set_bytes;
        bool match = false;

        switch (pattern[0]) {
        case '?':
                return 1;
        case '[':
                set_bytes = glob_set(pattern, pattern_bytes, c, &match);
                if (set_bytes > 0)
                        return match ? set_bytes : 0;
                return c == '[' ? 1 : 0;
        case '\\':
                if (pattern_bytes > 1)
                        return pattern[1] == c ? 2 : 0;
                return c == '\\' ? 1 : 0;
        default:
                return pattern[0] == c ? 1 : 0;
        }
}

/* Only the last '*' ever needs to be tried again: so is an earlier one no more use than it. */
bool hr_glob_match(const char *pattern, size_t pattern_bytes, const char *name, size_t name_bytes) {
        size_t p = 0, n = 0, star_p = SIZE_MAX, star_n = 0;

        while (n < name_bytes) {
                size_t taken = 0;

                if (p < pattern_bytes && pattern[p] == '*') {
                        star_p = ++p;
                        star_n = n;
                        continue;
                }
                if (p < pattern_bytes)
                        taken = glob_one(pattern + p, pattern_bytes - p, name[n]);
                if (taken > 0) {
                        p += taken;
                        n++;
                } else if (star_p != SIZE_MAX) {
                        p = star_p;
                        n = ++star_n;
                } else {
                        return false;
                }
        }
        while (p < pattern_bytes && pattern[p] == '*')
                p++;
        return p == pattern_bytes;
}

/* ---- Rules ----------------------------------------------------------------------------------- */

#define NO_DEVICE UINT32_MAX
#define FIT_RULE UINT32_MAX /* "the rule is a fit" among device indices */

struct planner {
        const struct hr_manifest *manifest;
        const struct hr_placement_device *devices;
        uint32_t device_count;
        const struct hr_placement_rule *rules;
        uint32_t rule_count;
        struct hr_placement *placement;
        uint32_t *rule_of; /* per tensor: the fit rule that took it, or rule_count */
        struct piece *pieces;
        struct target *targets;
        struct hr_diag *diag;
};

/* A tensor with its place on the line that `fit` cuts. */
struct piece {
        uint32_t tensor;
        uint32_t section; /* 0 before the layers, 1 layers, 2 behind them */
        uint64_t layer;   /* its number; without layers the tensor's own position */
};

/* One device's share of a `fit`. */
struct target {
        uint32_t device;
        double weight;
        bool weighted;
};

static uint32_t find_device(const struct planner *planner, const char *name, size_t name_bytes) {
        for (uint32_t i = 0; i < planner->device_count; i++)
                if (strlen(planner->devices[i].name) == name_bytes &&
                    memcmp(planner->devices[i].name, name, name_bytes) == 0)
                        return i;
        return NO_DEVICE;
}

static hr_status fail_device(struct planner *planner, const char *name, size_t name_bytes) {
        return hr_fail_reason(planner->diag, HR_E_NOT_FOUND, "DEVICE", "no device '%.*s'",
                              (int) HR_MIN(name_bytes, 40U), name);
}

static bool rule_is_fit(const struct hr_placement_rule *rule) {
        return strcmp(rule->device, "fit") == 0 || strncmp(rule->device, "fit:", 4) == 0;
}

/* Device of a naming rule, FIT_RULE for a fit. */
static hr_status rule_device(struct planner *planner, uint32_t index, uint32_t *ret_device) {
        const struct hr_placement_rule *rule = &planner->rules[index];
        const size_t device_bytes = strnlen(rule->device, HR_PLACEMENT_DEVICE_BYTES_MAX + 1);
        uint32_t device = FIT_RULE;

        if (strnlen(rule->pattern, HR_PATTERN_BYTES_MAX + 1) > HR_PATTERN_BYTES_MAX ||
            device_bytes > HR_PLACEMENT_DEVICE_BYTES_MAX)
                return hr_fail_reason(planner->diag, HR_E_INVALID, "PLACEMENT",
                                      "placement rule %u is too long", index);
        if (!rule_is_fit(rule)) {
                device = find_device(planner, rule->device, device_bytes);
                if (device == NO_DEVICE)
                        return fail_device(planner, rule->device, device_bytes);
        }
        *ret_device = device;
        return HR_OK;
}

/* Gives every tensor the device of its rule, or notes the fit rule that took it. */
static void apply_rules(struct planner *planner, const uint32_t *rule_devices) {
        for (uint32_t i = 0; i < planner->manifest->tensor_count; i++) {
                const struct hr_manifest_tensor *tensor = &planner->manifest->tensors[i];
                uint32_t device = planner->device_count - 1, rule = 0;

                while (rule < planner->rule_count &&
                       !hr_glob_match(planner->rules[rule].pattern,
                                      strlen(planner->rules[rule].pattern), tensor->name,
                                      tensor->name_bytes))
                        rule++;
                if (rule < planner->rule_count)
                        device = rule_devices[rule];
                planner->rule_of[i] = device == FIT_RULE ? rule : planner->rule_count;
                planner->placement->devices[i] = device;
                if (device != FIT_RULE) {
                        planner->placement->shares[device].planned_bytes += tensor->bytes;
                        planner->placement->shares[device].requested_bytes += tensor->bytes;
                }
        }
}

/* ---- Fit: who takes part --------------------------------------------------------------------- */

/* A positive decimal number such as 3 or 0.49, of at most 18 digits. */
static bool parse_weight(const char *text, size_t text_bytes, double *ret_weight) {
        double value = 0, scale = 1;
        bool point = false;
        uint32_t digits = 0;

        for (size_t i = 0; i < text_bytes; i++) {
                if (text[i] == '.' && !point) {
                        point = true;
                        continue;
                }
                if (text[i] < '0' || text[i] > '9' || ++digits > 18)
                        return false;
                value = value * 10 + (text[i] - '0');
                scale *= point ? 10 : 1;
        }
        if (digits == 0 || value <= 0)
                return false;
        *ret_weight = value / scale;
        return true;
}

static hr_status add_named_target(struct planner *planner, const char *item, size_t item_bytes,
                                  uint32_t *target_count) {
        const char *equals = memchr(item, '=', item_bytes);
        const size_t name_bytes = equals ? (size_t) (equals - item) : item_bytes;
        struct target target = {.device = find_device(planner, item, name_bytes),
                                .weighted = equals != NULL};

        if (target.device == NO_DEVICE)
                return fail_device(planner, item, name_bytes);
        if (equals && !parse_weight(equals + 1, item_bytes - name_bytes - 1, &target.weight))
                return hr_fail_reason(planner->diag, HR_E_INVALID, "PLACEMENT",
                                      "weight of device '%s' is no positive number",
                                      planner->devices[target.device].name);
        for (uint32_t i = 0; i < *target_count; i++) {
                if (planner->targets[i].device == target.device)
                        return hr_fail_reason(planner->diag, HR_E_INVALID, "PLACEMENT",
                                              "device '%s' twice in one rule",
                                              planner->devices[target.device].name);
                if (planner->targets[i].weighted != target.weighted)
                        return hr_fail_reason(planner->diag, HR_E_INVALID, "PLACEMENT",
                                              "weights for some devices of a rule only");
        }
        planner->targets[(*target_count)++] = target;
        return HR_OK;
}

/* Every kind of memory once; the last device of a kind stands for it (the one that computes
 * everything), at the place of the first. */
static uint32_t add_all_targets(struct planner *planner) {
        uint32_t count = 0;

        for (uint32_t i = 0; i < planner->device_count; i++) {
                uint32_t known = 0;

                while (known < count && planner->devices[planner->targets[known].device].memory !=
                                                planner->devices[i].memory)
                        known++;
                planner->targets[known] = (struct target){.device = i};
                count = HR_MAX(count, known + 1);
        }
        return count;
}

static hr_status collect_targets(struct planner *planner, const struct hr_placement_rule *rule,
                                 uint32_t *ret_count) {
        const char *item = rule->device + strlen("fit");
        uint32_t count = 0;
        double sum = 0;

        if (*item == '\0')
                count = add_all_targets(planner);
        while (*item != '\0') {
                const size_t item_bytes = strcspn(++item, ",");

                HR_TRY(add_named_target(planner, item, item_bytes, &count));
                item += item_bytes;
        }
        for (uint32_t i = 0; i < count; i++) {
                struct target *target = &planner->targets[i];

                if (!target->weighted)
                        target->weight = (double) planner->devices[target->device].free_bytes;
                sum += target->weight;
        }
        for (uint32_t i = 0; i < count; i++) /* nothing free anywhere: the allocation will tell */
                planner->targets[i].weight =
                        sum > 0 ? planner->targets[i].weight / sum : 1.0 / count;
        *ret_count = count;
        return HR_OK;
}

/* ---- Fit: who gets what ---------------------------------------------------------------------- */

/* The first component of the name that is a number. */
static bool name_layer(const char *name, uint64_t *ret_layer) {
        while (*name != '\0') {
                const size_t digits = strspn(name, "0123456789");

                if (digits > 0 && digits < 10 && (name[digits] == '.' || name[digits] == '\0')) {
                        *ret_layer = strtoull(name, NULL, 10);
                        return true;
                }
                name += strcspn(name, ".");
                name += *name == '.';
        }
        return false;
}

static int piece_compare(const void *a, const void *b) {
        const struct piece *first = a, *second = b;

        if (first->section != second->section)
                return first->section < second->section ? -1 : 1;
        if (first->layer != second->layer)
                return first->layer < second->layer ? -1 : 1;
        return (first->tensor > second->tensor) - (first->tensor < second->tensor);
}

static uint32_t collect_pieces(struct planner *planner, uint32_t rule) {
        uint32_t count = 0;

        for (uint32_t i = 0; i < planner->manifest->tensor_count; i++) {
                struct piece *piece = &planner->pieces[count];
                const char *name = planner->manifest->tensors[i].name;

                if (planner->rule_of[i] != rule)
                        continue;
                *piece = (struct piece){.tensor = i, .section = 1};
                if (!name_layer(name, &piece->layer)) {
                        piece->section = strncmp(name, "output", 6) == 0 ? 2 : 0;
                        piece->layer = i;
                }
                count++;
        }
        qsort(planner->pieces, count, sizeof *planner->pieces, piece_compare);
        return count;
}

/* Pieces from `first` on that stay together; gives one past the last, and their bytes. */
static uint32_t layer_end(const struct planner *planner, uint32_t first, uint32_t count,
                          uint64_t *ret_bytes) {
        const struct piece *pieces = planner->pieces;
        uint32_t end = first;

        *ret_bytes = 0;
        while (end < count && pieces[end].section == pieces[first].section &&
               pieces[end].layer == pieces[first].layer)
                *ret_bytes += planner->manifest->tensors[pieces[end++].tensor].bytes;
        return end;
}

static void cut_line(struct planner *planner, uint32_t piece_count, uint32_t target_count,
                     uint64_t total_bytes) {
        struct hr_placement_share *shares = planner->placement->shares;
        double share_end = planner->targets[0].weight * (double) total_bytes;
        uint32_t target = 0, first = 0;
        uint64_t position = 0;

        while (first < piece_count) {
                uint64_t bytes;
                const uint32_t end = layer_end(planner, first, piece_count, &bytes);
                const double middle = (double) position + (double) bytes / 2;

                while (target + 1 < target_count && middle > share_end)
                        share_end += planner->targets[++target].weight * (double) total_bytes;
                for (; first < end; first++)
                        planner->placement->devices[planner->pieces[first].tensor] =
                                planner->targets[target].device;
                shares[planner->targets[target].device].planned_bytes += bytes;
                position += bytes;
        }
        for (uint32_t i = 0; i < target_count; i++)
                shares[planner->targets[i].device].requested_bytes +=
                        (uint64_t) (planner->targets[i].weight * (double) total_bytes + 0.5);
}

static hr_status fit_rule(struct planner *planner, uint32_t rule) {
        const uint32_t piece_count = collect_pieces(planner, rule);
        uint32_t target_count = 0;
        uint64_t total_bytes = 0;

        HR_TRY(collect_targets(planner, &planner->rules[rule], &target_count));
        for (uint32_t i = 0; i < piece_count; i++)
                total_bytes += planner->manifest->tensors[planner->pieces[i].tensor].bytes;
        if (piece_count > 0)
                cut_line(planner, piece_count, target_count, total_bytes);
        return HR_OK;
}

/* ---- The whole ------------------------------------------------------------------------------- */

static hr_status check_steps(const struct planner *planner) {
        uint64_t pattern_bytes = 0, steps;

        for (uint32_t i = 0; i < planner->rule_count; i++)
                pattern_bytes += strlen(planner->rules[i].pattern) + 1;
        if (hr_mul_u64(pattern_bytes, planner->manifest->name_bytes, &steps) &&
            steps <= HR_PLACEMENT_STEPS_MAX)
                return HR_OK;
        return hr_fail_reason(planner->diag, HR_E_EXHAUSTED, "PLACEMENT",
                              "%u placement rules for %u tensors", planner->rule_count,
                              planner->manifest->tensor_count);
}

static hr_status plan(struct planner *planner, uint32_t *rule_devices) {
        for (uint32_t i = 0; i < planner->rule_count; i++)
                HR_TRY(rule_device(planner, i, &rule_devices[i]));
        HR_TRY(check_steps(planner));
        apply_rules(planner, rule_devices);
        for (uint32_t i = 0; i < planner->rule_count; i++)
                if (rule_devices[i] == FIT_RULE)
                        HR_TRY(fit_rule(planner, i));
        return HR_OK;
}

hr_status hr_placement_plan(struct hr_placement *placement, const struct hr_manifest *manifest,
                            const struct hr_placement_device *devices, uint32_t device_count,
                            const struct hr_placement_rule *rules, uint32_t rule_count,
                            struct hr_diag *diag) {
        const size_t tensor_count = manifest->tensor_count;
        struct hr_placement made = {
                .tensor_count = manifest->tensor_count,
                .device_count = device_count,
                .devices = calloc(tensor_count + 1, sizeof *made.devices),
                .shares = calloc((size_t) device_count + 1, sizeof *made.shares),
        };
        struct planner planner = {
                .manifest = manifest,
                .devices = devices,
                .device_count = device_count,
                .rules = rules,
                .rule_count = rule_count,
                .placement = &made,
                .diag = diag,
                .rule_of = calloc(tensor_count + 1, sizeof *planner.rule_of),
                .pieces = calloc(tensor_count + 1, sizeof *planner.pieces),
                .targets = calloc((size_t) device_count + 1, sizeof *planner.targets),
        };
        uint32_t *rule_devices = calloc((size_t) rule_count + 1, sizeof *rule_devices);
        hr_status status;

        HR_ASSERT(device_count > 0);
        if (made.devices && made.shares && planner.rule_of && planner.pieces && planner.targets &&
            rule_devices)
                status = plan(&planner, rule_devices);
        else
                status = hr_fail(diag, HR_E_EXHAUSTED, "placement of %zu tensors", tensor_count);
        free(rule_devices);
        free(planner.rule_of);
        free(planner.pieces);
        free(planner.targets);
        if (status == HR_OK)
                *placement = made;
        else
                hr_placement_deinit(&made);
        return status;
}

hr_status hr_placement_init(struct hr_placement *placement, const struct hr_manifest *manifest,
                            const struct hr_fleet *fleet, const struct hr_placement_rule *rules,
                            uint32_t rule_count, struct hr_diag *diag) {
        const uint32_t device_count = hr_fleet_device_count(fleet);
        struct hr_placement_device *devices = calloc(device_count, sizeof *devices);
        hr_status status;

        if (!devices)
                return hr_fail(diag, HR_E_EXHAUSTED, "placement over %u devices", device_count);
        for (uint32_t i = 0; i < device_count; i++) {
                const struct hr_device *device = hr_fleet_device(fleet, i);
                uint64_t total;

                devices[i].name = device->props.name;
                devices[i].memory = device->props.kind;
                hr_device_memory(device, &devices[i].free_bytes, &total);
                if (hr_fleet_is_retired(fleet, i)) /* no rule can mean it, and nothing fits there */
                        devices[i] = (struct hr_placement_device){.name = "", .memory = device};
        }
        status = hr_placement_plan(placement, manifest, devices, device_count, rules, rule_count,
                                   diag);
        free(devices);
        return status;
}

hr_status hr_placement_init_given(struct hr_placement *placement,
                                  const struct hr_manifest *manifest, uint32_t device_count,
                                  const uint32_t *devices, struct hr_diag *diag) {
        struct hr_placement made = {
                .tensor_count = manifest->tensor_count,
                .device_count = device_count,
                .devices = calloc((size_t) manifest->tensor_count + 1, sizeof *made.devices),
                .shares = calloc((size_t) device_count + 1, sizeof *made.shares),
        };

        if (!made.devices || !made.shares) {
                hr_placement_deinit(&made);
                return hr_fail(diag, HR_E_EXHAUSTED, "placement of %u tensors",
                               manifest->tensor_count);
        }
        for (uint32_t i = 0; i < manifest->tensor_count; i++) {
                HR_ASSERT(devices[i] < device_count);
                made.devices[i] = devices[i];
                made.shares[devices[i]].planned_bytes += manifest->tensors[i].bytes;
                made.shares[devices[i]].requested_bytes += manifest->tensors[i].bytes;
        }
        *placement = made;
        return HR_OK;
}

void hr_placement_deinit(struct hr_placement *placement) {
        free(placement->devices);
        free(placement->shares);
        *placement = (struct hr_placement){0};
}
