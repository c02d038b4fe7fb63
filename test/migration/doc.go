// Package migration compares what vipd does with a configuration that "vipctl convert" has made with what the program does that the
// configuration was for: HAProxy's spread over its servers, and keepalived's tables of IPVS.
package migration
