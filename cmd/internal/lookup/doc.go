// Package lookup finds services by the names that users type, and the endpoints that a drain or
// weight request selects. vipd searches the services that it uses, and vipctl the services in etcd.
// If nothing is found, the error suggests or lists known names.
package lookup
