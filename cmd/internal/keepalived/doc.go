// Package keepalived reads the virtual routers (vrrp_instance) of keepalived processes from their
// configuration files. It ignores lines that depend on a condition (@), and does not replace
// variables. So the result may lack routers or details, but what it contains is certain.
package keepalived
