/* Making, destroying and describing vNPUs, as the driver does it. */

#ifndef DCMI_SIM_VNPU_H
#define DCMI_SIM_VNPU_H

#include "call.h"

#define FIRST_VDEV 100U
#define VDEV_END 1124U
#define WINDOW 16U

int vnpu_create(struct call *call, const struct chip *chip, const struct create_request *request, struct create_reply *reply);
int vnpu_destroy(struct call *call, const struct chip *chip, uint32_t id);

/* Replies in which what the driver does not fill reads all ones. */
int vnpu_query(struct call *call, const struct chip *chip, struct vdev_query *query);
int vnpu_activity(struct call *call, const struct chip *chip, struct vdev_query *query);
int vnpu_total(struct call *call, const struct chip *chip, struct total_resource *total);
int vnpu_free(struct call *call, const struct chip *chip, struct free_resource *rest);

/* Whether the process may change vNPUs: OK or the code that refuses. */
int vnpu_permission(const struct node *node);

#endif
