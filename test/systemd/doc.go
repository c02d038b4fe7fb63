// Package systemd checks what is installed on hosts: the unit, and the default configuration.
package systemd
