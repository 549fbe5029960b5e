"""Where the rules stand, and which files of tests/unit are asked first about those of each place."""

from collections.abc import Mapping
from typing import Final

AUDIT: Final = "src/devward/audit.py"
ALLOCATION: Final = "src/devward/cluster/allocation.py"
ANNOTATIONS: Final = "src/devward/cluster/annotations.py"
ANSWER: Final = "src/devward/cluster/answer.py"
API: Final = "src/devward/cluster/api.py"
BUNDLE: Final = "src/devward/cluster/bundle.py"
BUNDLES: Final = "src/devward/cluster/bundles.py"
CHANGES: Final = "src/devward/changes.py"
CADENCE: Final = "src/devward/cluster/cadence.py"
CARDS: Final = "src/devward/cluster/cards.py"
CGROUPS: Final = "src/devward/cluster/cgroups.py"
CHECKPOINT: Final = "src/devward/cluster/checkpoint.py"
CHECKPOINT_FILE: Final = "src/devward/cluster/checkpoint_file.py"
CLAIMS: Final = "src/devward/cluster/claims.py"
CONTAINERS: Final = "src/devward/cluster/containers.py"
DESCRIPTORS: Final = "src/devward/cluster/descriptors.py"
DRIVERS: Final = "src/devward/cluster/drivers.py"
EVIDENCE: Final = "src/devward/cluster/evidence.py"
HAMI: Final = "src/devward/cluster/hami.py"
KEEPING: Final = "src/devward/cluster/keeping.py"
KUBECONFIG: Final = "src/devward/cluster/kubeconfig.py"
KUBELET: Final = "src/devward/cluster/kubelet.py"
KUBELET_SEARCH: Final = "src/devward/cluster/kubelet_search.py"
SIGNS: Final = "src/devward/cluster/kubelet_signs.py"
LEDGER: Final = "src/devward/cluster/ledger.py"
LIFE: Final = "src/devward/cluster/life.py"
LOCAL: Final = "src/devward/cluster/local.py"
MANAGERS: Final = "src/devward/cluster/managers.py"
NODE: Final = "src/devward/cluster/node.py"
OWNERS: Final = "src/devward/cluster/owners.py"
PARTS: Final = "src/devward/cluster/parts.py"
PODLIST: Final = "src/devward/cluster/podlist.py"
PODMEMORY: Final = "src/devward/cluster/podmemory.py"
PODS: Final = "src/devward/cluster/pods.py"
PROCESS_USERS: Final = "src/devward/cluster/process_users.py"
UNIX_SOCKETS: Final = "src/devward/cluster/unix_sockets.py"
READINGS: Final = "src/devward/cluster/readings.py"
RECOLLECTION: Final = "src/devward/cluster/recollection.py"
SNAPSHOT: Final = "src/devward/cluster/snapshot.py"
STATEMENT: Final = "src/devward/cluster/statement.py"
THIS_HOST: Final = "src/devward/cluster/this_host.py"
UDA: Final = "src/devward/cluster/uda.py"
WITNESS: Final = "src/devward/cluster/witness.py"
CONFIG_KEYS: Final = "src/devward/config_keys.py"
ACCESS: Final = "src/devward/npu/access.py"
BROKER: Final = "src/devward/npu/broker.py"
CHIPS: Final = "src/devward/npu/chips.py"
CLIENT: Final = "src/devward/npu/client.py"
DCMI: Final = "src/devward/npu/dcmi.py"
DESTRUCTION: Final = "src/devward/npu/destruction.py"
ENVIRONMENT: Final = "src/devward/npu/environment.py"
GATE: Final = "src/devward/npu/gate.py"
HOST_SCAN: Final = "src/devward/npu/host_scan.py"
HOST_WITNESS: Final = "src/devward/npu/host_witness.py"
INVENTORY: Final = "src/devward/npu/inventory.py"
NPU_MEMORY: Final = "src/devward/npu/memory.py"
NPU_ROOM: Final = "src/devward/npu/room.py"
NUMBERING: Final = "src/devward/npu/numbering.py"
PAUSING: Final = "src/devward/pausing.py"
PINS: Final = "src/devward/npu/pins.py"
PINNING: Final = "src/devward/pinning.py"
SERVICE: Final = "src/devward/npu/service.py"
SURVEY: Final = "src/devward/npu/survey.py"
NPU_WATCHER: Final = "src/devward/npu/watcher.py"
AFTERMATH: Final = "src/devward/reclaim/aftermath.py"
ASKING: Final = "src/devward/reclaim/asking.py"
CONFIRMATION: Final = "src/devward/reclaim/confirmation.py"
CONTRACT: Final = "src/devward/reclaim/contract.py"
CONTROLS: Final = "src/devward/reclaim/controls.py"
COUNTERS: Final = "src/devward/reclaim/counters.py"
HISTORY: Final = "src/devward/reclaim/history.py"
JUDGED: Final = "src/devward/reclaim/judged.py"
KEPT: Final = "src/devward/reclaim/kept.py"
RECLAIM_LEDGER: Final = "src/devward/reclaim/ledger.py"
LIMITS: Final = "src/devward/reclaim/limits.py"
LOOK: Final = "src/devward/reclaim/look.py"
OBSTACLES: Final = "src/devward/reclaim/obstacles.py"
RECONCILER: Final = "src/devward/reclaim/reconciler.py"
RECORD: Final = "src/devward/reclaim/record.py"
RECLAIM_ACTIONS: Final = "src/devward/reclaim/actions.py"
RECLAIM_ROOM: Final = "src/devward/reclaim/room.py"
SAFEKEEPING: Final = "src/devward/reclaim/safekeeping.py"
SHIELD: Final = "src/devward/reclaim/shield.py"
STAYS: Final = "src/devward/reclaim/stays.py"
TRAIL: Final = "src/devward/reclaim/trail.py"
UNDERWAY: Final = "src/devward/reclaim/underway.py"
VERDICT: Final = "src/devward/reclaim/verdict.py"
WISHES: Final = "src/devward/reclaim/wishes.py"
STATE: Final = "src/devward/state.py"
UNIT: Final = "systemd/devward-dcmi.service"

ASKED: Final[Mapping[str, tuple[str, ...]]] = {
    AUDIT: ("test_audit.py", "test_reclaim_reconciler.py"),
    ALLOCATION: ("test_checkpoint_allocation.py", "test_checkpoint.py"),
    ANNOTATIONS: ("test_pods_claims.py", "test_pods_reports.py", "test_pods_properties.py"),
    ANSWER: ("test_pods_podlist.py", "test_cluster_node.py"),
    API: ("test_api_library.py", "test_api.py"),
    BUNDLE: ("test_local_bundle.py", "test_pods_claims.py", "test_local_bundles.py"),
    BUNDLES: ("test_local_bundles.py", "test_local.py"),
    CADENCE: ("test_cadence.py", "test_owners_watcher.py"),
    CARDS: ("test_pods_claims.py", "test_pods_table.py", "test_pods_reports.py", "test_pods_properties.py"),
    CGROUPS: ("test_local_cgroups.py", "test_local.py"),
    CHECKPOINT: ("test_checkpoint.py", "test_checkpoint_file.py"),
    CHECKPOINT_FILE: ("test_checkpoint_file.py",),
    CLAIMS: ("test_pods_claims.py", "test_snapshot_gates.py", "test_pods_properties.py"),
    CONTAINERS: ("test_pods_table.py", "test_pods_claims.py", "test_pods_reports.py"),
    DESCRIPTORS: ("test_local_descriptors.py", "test_local.py"),
    DRIVERS: ("test_drivers.py",),
    EVIDENCE: ("test_local.py", "test_witness.py"),
    HAMI: ("test_cluster_hami.py", "test_snapshot_gates.py"),
    KEEPING: ("test_owners_keeping.py", "test_owners_memory.py"),
    KUBECONFIG: ("test_api_credentials.py", "test_api.py"),
    KUBELET: ("test_kubelet.py",),
    KUBELET_SEARCH: ("test_kubelet.py",),
    SIGNS: ("test_npu_outfit.py", "test_kubelet.py"),
    LEDGER: ("test_snapshot_gates.py", "test_snapshot_memory.py"),
    LIFE: ("test_local_bundles.py", "test_local.py"),
    LOCAL: ("test_local.py", "test_host_scan.py"),
    MANAGERS: ("test_cluster_managers.py", "test_snapshot_gates.py"),
    NODE: ("test_cluster_node.py", "test_snapshot_gates.py"),
    OWNERS: ("test_owners_watcher.py", "test_owners_memory.py"),
    PARTS: ("test_snapshot_gates.py",),
    PODLIST: ("test_pods_podlist.py", "test_pods_claims.py"),
    PODMEMORY: ("test_pods_memory.py",),
    PODS: ("test_pods_claims.py", "test_pods_table.py", "test_pods_reports.py", "test_pods_properties.py"),
    PROCESS_USERS: ("test_process_users.py", "test_kubelet.py"),
    UNIX_SOCKETS: ("test_unix_sockets.py",),
    READINGS: ("test_snapshot_gates.py", "test_owners_snapshot.py"),
    RECOLLECTION: (
        "test_snapshot_memory.py",
        "test_snapshot_gates.py",
        "test_owners_memory.py",
        "test_snapshot_properties.py",
        "test_owners_keeping.py",
    ),
    SNAPSHOT: ("test_snapshot_gates.py", "test_owners_snapshot.py", "test_snapshot_memory.py", "test_snapshot_properties.py"),
    STATEMENT: ("test_witness.py", "test_host_witness.py", "test_witness_protocol.py"),
    THIS_HOST: ("test_this_host.py",),
    UDA: ("test_local_uda.py", "test_local.py"),
    WITNESS: ("test_witness.py", "test_owners_gatherer.py", "test_owners_snapshot.py"),
    CONFIG_KEYS: ("test_config.py",),
    ACCESS: ("test_dcmi_library.py", "test_dcmi_broker.py"),
    BROKER: ("test_dcmi_broker.py",),
    CHIPS: ("test_npu_inventory.py", "test_npu_through_broker.py"),
    CLIENT: ("test_npu_client_destroy.py", "test_npu_client.py"),
    DCMI: ("test_dcmi_destruction.py", "test_dcmi_layouts.py"),
    DESTRUCTION: ("test_dcmi_destruction.py", "test_dcmi_broker.py"),
    ENVIRONMENT: ("test_dcmi_environment.py", "test_dcmi_broker.py"),
    GATE: ("test_dcmi_gate.py", "test_dcmi_broker.py"),
    HOST_SCAN: ("test_host_scan.py",),
    HOST_WITNESS: ("test_host_witness.py",),
    INVENTORY: ("test_npu_inventory.py", "test_npu_through_broker.py"),
    NPU_MEMORY: ("test_npu_inventory.py", "test_npu_through_broker.py"),
    NPU_ROOM: ("test_npu_room.py",),
    NUMBERING: ("test_dcmi_destruction.py", "test_dcmi_survey.py", "test_npu_inventory.py"),
    PINS: ("test_npu_pins.py", "test_pinning.py"),
    PAUSING: ("test_pausing.py", "test_reclaim_room.py"),
    PINNING: ("test_pinning.py",),
    SERVICE: ("test_dcmi_destruction.py", "test_dcmi_broker.py"),
    SURVEY: ("test_dcmi_survey.py", "test_dcmi_destruction.py"),
    NPU_WATCHER: ("test_npu_watcher.py",),
    AFTERMATH: ("test_reclaim_contract.py", "test_reclaim_reconciler.py"),
    ASKING: ("test_reclaim_verdict.py", "test_reclaim_reconciler.py", "test_reclaim_room.py", "test_reclaim_recorded.py"),
    CONFIRMATION: (
        "test_reclaim_confirmation.py",
        "test_reclaim_verdict.py",
        "test_reclaim_properties.py",
        "test_reclaim_contract.py",
        "test_reclaim_reconciler.py",
    ),
    CONTRACT: ("test_reclaim_contract.py", "test_reclaim_reconciler.py"),
    CONTROLS: ("test_reclaim_controls.py", "test_reclaim_contract.py", "test_reclaim_reconciler.py"),
    COUNTERS: ("test_reclaim_history.py", "test_reclaim_reconciler.py", "test_reclaim_room.py"),
    HISTORY: ("test_reclaim_history.py", "test_reclaim_reconciler.py"),
    KEPT: ("test_reclaim_kept.py", "test_reclaim_room.py"),
    LIMITS: ("test_reclaim_limits.py", "test_reclaim_contract.py", "test_reclaim_reconciler.py"),
    LOOK: (
        "test_reclaim_verdict.py",
        "test_reclaim_confirmation.py",
        "test_reclaim_reconciler.py",
        "test_reclaim_history.py",
        "test_reclaim_recorded.py",
    ),
    JUDGED: ("test_reclaim_room.py",),
    RECLAIM_LEDGER: ("test_reclaim_reconciler.py", "test_reclaim_room.py"),
    STAYS: ("test_reclaim_stays.py", "test_reclaim_reconciler.py"),
    TRAIL: ("test_reclaim_reconciler.py",),
    OBSTACLES: ("test_reclaim_reconciler.py", "test_reclaim_room.py"),
    RECONCILER: ("test_reclaim_reconciler.py", "test_reclaim_room.py"),
    RECORD: ("test_reclaim_history.py", "test_reclaim_reconciler.py", "test_reclaim_recorded.py"),
    RECLAIM_ACTIONS: ("test_reclaim_room.py",),
    CHANGES: ("test_reclaim_room.py",),
    RECLAIM_ROOM: ("test_reclaim_room.py", "test_reclaim_reconciler.py"),
    SAFEKEEPING: ("test_reclaim_room.py",),
    SHIELD: ("test_reclaim_verdict.py", "test_reclaim_confirmation.py", "test_reclaim_properties.py"),
    UNDERWAY: ("test_reclaim_underway.py", "test_reclaim_room.py"),
    VERDICT: ("test_reclaim_verdict.py", "test_reclaim_confirmation.py", "test_reclaim_properties.py"),
    WISHES: ("test_reclaim_reconciler.py", "test_reclaim_room.py"),
    UNIT: ("test_dcmi_units.py",),
    STATE: ("test_state.py", "test_remembered.py"),
}
