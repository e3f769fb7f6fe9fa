# Makes the databases and the accounts of a new OpenStack, in its machine, as root.
set -eux

systemctl start mariadb rabbitmq-server
for name in keystone glance placement nova nova_api nova_cell0 neutron cinder; do
    echo "CREATE DATABASE $name; GRANT ALL ON $name.* TO openstack@localhost IDENTIFIED BY 'secret';"
done | mariadb
rabbitmqctl --quiet add_user openstack secret
rabbitmqctl --quiet set_permissions openstack '.*' '.*' '.*'

as() {
    user=$1
    shift
    setpriv --reuid="$user" --regid="$user" --init-groups "$@"
}
as keystone keystone-manage db_sync
keystone-manage fernet_setup --keystone-user keystone --keystone-group keystone
keystone-manage credential_setup --keystone-user keystone --keystone-group keystone
keystone-manage bootstrap --bootstrap-password secret --bootstrap-region-id RegionOne \
    --bootstrap-public-url http://127.0.0.1:5000/v3 --bootstrap-internal-url http://127.0.0.1:5000/v3
as glance glance-manage db_sync
as placement placement-manage db sync
as nova nova-manage api_db sync
as nova nova-manage cell_v2 map_cell0
as nova nova-manage cell_v2 create_cell --name cell1
as nova nova-manage db sync
as neutron neutron-db-manage --config-file /etc/neutron/neutron.conf upgrade heads
as cinder cinder-manage db sync

systemctl start keystone
until curl --silent --fail http://127.0.0.1:5000/v3 >/dev/null; do sleep 1; done
. /root/openrc
openstack project create service
add() { # type name url
    openstack user create --project service --password secret "$2"
    openstack role add --project service --user "$2" admin
    openstack role add --project service --user "$2" service
    openstack service create --name "$2" "$1"
    openstack endpoint create --region RegionOne "$1" public "$3"
}
add image glance http://127.0.0.1:9292
add placement placement http://127.0.0.1:8778
add compute nova http://127.0.0.1:8774/v2.1
add network neutron http://127.0.0.1:9696
add volumev3 cinder 'http://127.0.0.1:8776/v3/%(project_id)s'
systemctl stop keystone rabbitmq-server mariadb
