import { Nav, NavItem, NavList, Page, PageSection } from "@patternfly/react-core";
import { hostNow } from "./agent/questions";
import { useLive } from "./agent/live";
import { CalibratePage } from "./calibrate/CalibratePage";
import { useCalibration } from "./calibrate/useCalibration";
import { DrivePage } from "./drive/DrivePage";
import { FleetPage } from "./fleet/FleetPage";
import { HostPage } from "./host/HostPage";
import { useTrends } from "./host/trends";
import { hrefOf, useLocation } from "./location";
import { ReportPage } from "./report/ReportPage";
import { chosenIn, TenantsPage } from "./tenants/TenantsPage";

const EVERY_MS = 2000;
const VIEWS = [
    { path: [], word: "Host" },
    { path: ["tenants"], word: "Tenants" },
    { path: ["fleet"], word: "Fleet" },
    { path: ["report"], word: "Report" },
    { path: ["calibrate"], word: "Calibrate" },
] as const;

/** The page: its views, by the address. */
export function App() {
    const path = useLocation();
    const host = useLive("host", EVERY_MS, hostNow);
    const trends = useTrends(host.answer);
    const calibration = useCalibration(); // goes on while another view is shown
    const [view, domain, target] = path;

    const inFleet = host.answer?.fleet || view === "fleet";
    const views = VIEWS.filter(({ word }) => word !== "Fleet" || inFleet);

    let shown = <HostPage live={host} trends={trends} />;
    if (view === "tenants") shown = <TenantsPage live={host} trends={trends} chosen={chosenIn(path)} />;
    if (view === "fleet") shown = <FleetPage live={host} />;
    if (view === "report") shown = <ReportPage />;
    if (view === "calibrate") shown = <CalibratePage calibration={calibration} />;
    if (view === "drive" && domain && target) {
        shown = <DrivePage key={path.join("/")} domain={domain} target={target} host={host} />;
    }
    return (
        <Page className="pf-m-no-sidebar" isContentFilled>
            <PageSection type="subnav" hasBodyWrapper={false}>
                <Nav variant="horizontal" aria-label="Views">
                    <NavList>
                        {views.map(({ path: to, word }) => (
                            <NavItem
                                key={word}
                                to={hrefOf(to)}
                                isActive={(view ?? "") === (to[0] ?? "")}
                            >
                                {word}
                            </NavItem>
                        ))}
                    </NavList>
                </Nav>
            </PageSection>
            {view !== "drive" && <h1 className="pf-v6-screen-reader">{titleOf(view)}</h1>}
            {shown}
        </Page>
    );
}

function titleOf(view: string | undefined): string {
    return VIEWS.find(({ path }) => path[0] === view)?.word ?? "Disk limits";
}
