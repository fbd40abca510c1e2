# Copyright: Contributors to the autopilot.gpu collection
# SPDX-License-Identifier: Apache-2.0
"""What talks to the API server of Kubernetes: jobs, volume claims, marks of nodes."""
