// The parts of ECharts that the page draws with; everything else is left out of the bundle.
import { init, use } from "echarts/core";
import { BarChart, CustomChart, LineChart, ScatterChart, TreemapChart } from "echarts/charts";
import {
    AriaComponent,
    DataZoomInsideComponent,
    GridComponent,
    LegendComponent,
    MarkLineComponent,
    MarkPointComponent,
    TooltipComponent,
} from "echarts/components";
import { CanvasRenderer } from "echarts/renderers";

use([
    AriaComponent,
    BarChart,
    CanvasRenderer,
    CustomChart,
    DataZoomInsideComponent,
    GridComponent,
    LegendComponent,
    LineChart,
    MarkLineComponent,
    MarkPointComponent,
    ScatterChart,
    TooltipComponent,
    TreemapChart,
]);

export { init };
