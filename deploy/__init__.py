"""Files that install Holdfast: systemd units, images, manifests, a batch script, an Ansible role, monitoring."""
