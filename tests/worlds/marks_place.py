# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A place in a cluster where a test marks nodes: a namespace, an agent's account, nodes, and a
label of its own.
"""

from __future__ import annotations

import itertools
import os
import time


from _health.cluster import mark_states, mark_on_node  # noqa: E402
from autopilot_agent.cluster.kube import Kube  # noqa: E402

_numbers = itertools.count()


class Place:
    """A namespace with an agent's service account, which may do what marks need and no more, and
    nodes of one test.
    """

    def __init__(self, lab, directory):
        self.lab = lab
        self.name = f"marks-{os.getpid()}-{next(_numbers)}"
        # A key of its own keeps other tests' marks out.
        self.rules = mark_states.Rules(
            label_key=f"{self.name}.example.org/gpuhealth",
            taint="NoSchedule",
            cordon=True,
            namespace=self.name,
        )
        self.nodes = []
        lab.make_namespace(self.name)
        lab.kubectl("-n", self.name, "create", "serviceaccount", "agent")
        may = [
            {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "patch"]},
            {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
        ]
        may_here = [
            {
                "apiGroups": ["coordination.k8s.io"],
                "resources": ["leases"],
                "verbs": ["get", "create", "update"],
            }
        ]
        # Events about nodes have to be in this namespace.
        may_there = [{"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}]
        for kind, rules, where in (
            ("ClusterRole", may, {}),
            ("Role", may_here, {"namespace": self.name}),
            ("Role", may_there, {"namespace": "default"}),
        ):
            metadata = {"name": self.name, **where}
            lab.create(
                {
                    "apiVersion": "rbac.authorization.k8s.io/v1",
                    "kind": kind,
                    "metadata": metadata,
                    "rules": rules,
                }
            )
            lab.create(
                {
                    "apiVersion": "rbac.authorization.k8s.io/v1",
                    "kind": f"{kind}Binding",
                    "metadata": metadata,
                    "roleRef": {
                        "apiGroup": "rbac.authorization.k8s.io",
                        "kind": kind,
                        "name": self.name,
                    },
                    "subjects": [
                        {"kind": "ServiceAccount", "name": "agent", "namespace": self.name}
                    ],
                }
            )
        self.token = directory / "token"
        self.token.write_text(lab.token(self.name, "agent"), encoding="ascii")

    def node(self):
        name = f"{self.name}-{len(self.nodes)}"
        self.lab.make_node(name)
        self.nodes.append(name)
        return name

    def bare_nodes(self, number):
        """Nodes of which nothing is known but the name, all at once."""
        names = [f"{self.name}-{len(self.nodes) + each}" for each in range(number)]
        self.lab.apply(
            *({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in names)
        )
        self.nodes += names
        return names

    def agent(self):
        return Kube(self.lab.server, str(self.lab.ca), str(self.token))

    def read(self, name):
        return self.lab.get("node", name)

    def label(self, name):
        return self.read(name)["metadata"].get("labels", {}).get(self.rules.label_key)

    def state(self, name, now=None):
        return mark_on_node.read(self.read(name), self.rules, time.time() if now is None else now)

    def close(self):
        if self.nodes:
            self.lab.kubectl("delete", "node", "--ignore-not-found", "--wait=false", *self.nodes)
        self.lab.kubectl("delete", "clusterrole,clusterrolebinding", self.name)
        self.lab.kubectl("-n", "default", "delete", "role,rolebinding", self.name)
        self.lab.kubectl("delete", "namespace", self.name, "--wait=false")
