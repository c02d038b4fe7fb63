// Package rtnl adds and removes many addresses and routes at once over netlink.
package rtnl
