/* The vendor's list of vNPUs to make again at boot, /etc/vnpu.cfg. A node without a path for it keeps none. */

#ifndef DCMI_SIM_CFG_H
#define DCMI_SIM_CFG_H

#include "layouts.h"
#include "state.h"

int cfg_get_recover(const struct node *node, bool *enabled);
int cfg_set_recover(const struct node *node, bool enabled);
/* Whether the vNPU has a line: OK or NO_SUCH_DEVICE, else an error. */
int cfg_find(const struct node *node, int phy, uint32_t id);
int cfg_insert(const struct node *node, const struct chip *chip, const struct vnpu *vnpu);
/* Without the line of that vNPU; of all the chip's for WHOLE_CHIP. */
int cfg_remove(const struct node *node, int phy, uint32_t id);

#endif
