# Copyright: Contributors to the autopilot.gpu collection
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# Note that this doc fragment is PRIVATE to the collection. It can have breaking changes at any
# time. Do not use it from other collections or standalone plugins/modules.

from __future__ import annotations


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  url:
    description:
      - URL of the Pushgateway, such as V(https://push.example:9091). Without it nothing is pushed.
      - A user and a password in the URL are used for basic authentication and are never shown.
    type: str
    env:
      - name: AUTOPILOT_PUSHGATEWAY_URL
    ini:
      - section: callback_autopilot_gpu_pushgateway
        key: url
    vars:
      - name: pushgateway_url
  job:
    description: Value of the label C(job).
    type: str
    default: autopilot_gpu
    env:
      - name: AUTOPILOT_PUSHGATEWAY_JOB
    ini:
      - section: callback_autopilot_gpu_pushgateway
        key: job
    vars:
      - name: pushgateway_job
  labels:
    description:
      - Further labels of each group of metrics, as a dictionary, or as text such as
        V(cluster=a,site=north).
      - Runs with different labels do not change each other's metrics.
    type: raw
    default: {}
    env:
      - name: AUTOPILOT_PUSHGATEWAY_LABELS
    ini:
      - section: callback_autopilot_gpu_pushgateway
        key: labels
    vars:
      - name: pushgateway_labels
  timeout:
    description:
      - Maximum seconds for pushing at the end of a playbook. Remaining metrics are kept for the
        next run.
      - A Pushgateway that does not answer is abandoned after 10 seconds, and after 5 seconds
        without a connection.
      - An interrupted playbook is delayed by at most 5 seconds.
    type: float
    default: 30
    env:
      - name: AUTOPILOT_PUSHGATEWAY_TIMEOUT
    ini:
      - section: callback_autopilot_gpu_pushgateway
        key: timeout
    vars:
      - name: pushgateway_timeout
  username:
    description: User for basic authentication.
    type: str
    env:
      - name: AUTOPILOT_PUSHGATEWAY_USERNAME
    ini:
      - section: callback_autopilot_gpu_pushgateway
        key: username
    vars:
      - name: pushgateway_username
  allow_plaintext:
    description: Send a password or token to a Pushgateway on another host over V(http://), which
      shows it to the network.
    type: bool
    default: false
    env:
      - name: AUTOPILOT_PUSHGATEWAY_ALLOW_PLAINTEXT
    ini:
      - section: callback_autopilot_gpu_pushgateway
        key: allow_plaintext
    vars:
      - name: pushgateway_allow_plaintext
  password:
    description: Password for basic authentication. A file (O(password_file)) is visible to fewer
      users than the environment.
    type: str
    env:
      - name: AUTOPILOT_PUSHGATEWAY_PASSWORD
    vars:
      - name: pushgateway_password
  password_file:
    description: File on the controller with the password for basic authentication.
    type: path
    env:
      - name: AUTOPILOT_PUSHGATEWAY_PASSWORD_FILE
    ini:
      - section: callback_autopilot_gpu_pushgateway
        key: password_file
    vars:
      - name: pushgateway_password_file
  token:
    description: Bearer token. A file (O(token_file)) is visible to fewer users than the
      environment.
    type: str
    env:
      - name: AUTOPILOT_PUSHGATEWAY_TOKEN
    vars:
      - name: pushgateway_token
  token_file:
    description: File on the controller with the bearer token.
    type: path
    env:
      - name: AUTOPILOT_PUSHGATEWAY_TOKEN_FILE
    ini:
      - section: callback_autopilot_gpu_pushgateway
        key: token_file
    vars:
      - name: pushgateway_token_file
  ca_file:
    description: File with the CA certificates for the Pushgateway; those of the system when not
      given.
    type: path
    env:
      - name: AUTOPILOT_PUSHGATEWAY_CA_FILE
    ini:
      - section: callback_autopilot_gpu_pushgateway
        key: ca_file
    vars:
      - name: pushgateway_ca_file
  client_cert:
    description: File with the client certificate, and its key unless O(client_key) is given.
    type: path
    env:
      - name: AUTOPILOT_PUSHGATEWAY_CLIENT_CERT
    ini:
      - section: callback_autopilot_gpu_pushgateway
        key: client_cert
    vars:
      - name: pushgateway_client_cert
  client_key:
    description: File with the key of O(client_cert), without a passphrase.
    type: path
    env:
      - name: AUTOPILOT_PUSHGATEWAY_CLIENT_KEY
    ini:
      - section: callback_autopilot_gpu_pushgateway
        key: client_key
    vars:
      - name: pushgateway_client_key
  on_failure:
    description: How to report that metrics could not be pushed. The playbook continues in any case.
    type: str
    default: warn
    choices:
      warn: A warning says what, why, and what is kept for the next run.
      ignore: The same is shown with C(-v) only.
    env:
      - name: AUTOPILOT_PUSHGATEWAY_ON_FAILURE
    ini:
      - section: callback_autopilot_gpu_pushgateway
        key: on_failure
    vars:
      - name: pushgateway_on_failure
  spool_dir:
    description:
      - Directory on the controller for metrics that are not pushed yet; C(autopilot_gpu/spool) in
        Ansible's home (C(ANSIBLE_HOME)) when not given.
      - In an execution environment, use a directory that outlives the container.
    type: path
    env:
      - name: AUTOPILOT_PUSHGATEWAY_SPOOL_DIR
    ini:
      - section: callback_autopilot_gpu_pushgateway
        key: spool_dir
    vars:
      - name: pushgateway_spool_dir
  spool_limit:
    description: Maximum MiB that are kept for a Pushgateway; the oldest runs are dropped first.
      V(0) keeps nothing.
    type: float
    default: 64
    env:
      - name: AUTOPILOT_PUSHGATEWAY_SPOOL_LIMIT
    ini:
      - section: callback_autopilot_gpu_pushgateway
        key: spool_limit
    vars:
      - name: pushgateway_spool_limit
  compatibility:
    description: Whether to push C(autopilot_health_checks), the metric of IBM Autopilot, too.
    type: bool
    default: false
    env:
      - name: AUTOPILOT_PUSHGATEWAY_COMPATIBILITY
    ini:
      - section: callback_autopilot_gpu_pushgateway
        key: compatibility
    vars:
      - name: pushgateway_compatibility
"""
