// Package migration compares vipd with other programs. vipd runs a configuration made by "vipctl
// convert", and the other program runs the original. The tests compare how HAProxy distributes
// connections among servers, and which IPVS tables keepalived creates.
package migration
