"""Installs one of the Ansible versions that Zuul supports: install_ansible.py ROOT VERSION

What `zuul-manage-ansible -r ROOT` does, which knows only all of them or none.
"""

import sys

from zuul.lib.ansible import AnsibleManager

root, version = sys.argv[1:]
ansible = AnsibleManager(runtime_install_root=root)._getAnsible(version)
ansible.ensure_venv()
ansible.ensure_ansible()
