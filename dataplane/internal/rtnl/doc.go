// Package rtnl adds and removes addresses and routes in batches over netlink.
package rtnl
