// Package migration compares vipd with other programs. vipd runs a configuration made by "vipctl
// convert", and the other program runs the original. It compares HAProxy's spread over its servers,
// and keepalived's tables of IPVS.
package migration
