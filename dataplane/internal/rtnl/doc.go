// Package rtnl adds and removes many addresses and routes at once, by netlink.
package rtnl
