// Package keepalived reads keepalived processes' virtual routers (vrrp_instance) from their
// configuration files. It ignores lines that depend on a condition (@), and does not replace
// variables. The result may therefore lack routers or details, but everything in it is certain.
package keepalived
