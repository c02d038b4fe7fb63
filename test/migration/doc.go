// Package migration compares vipd with other programs. vipd runs a configuration made by "vipctl
// convert", and the other program runs the original. It compares how HAProxy distributes
// connections over servers, and which IPVS tables keepalived creates.
package migration
