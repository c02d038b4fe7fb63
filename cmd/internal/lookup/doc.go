// Package lookup finds services by the names that users type, and the endpoints of a request that
// drains endpoints or sets their weight. vipd searches the services that it uses, and vipctl the
// services in etcd. If nothing is found, the error suggests or lists known names.
package lookup
