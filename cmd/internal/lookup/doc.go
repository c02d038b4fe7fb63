// Package lookup finds objects by the names that users type: services, and the endpoints of a
// request to drain or weigh. vipd searches its own services, and vipctl the services in etcd. If
// nothing is found, the error lists known names.
package lookup
